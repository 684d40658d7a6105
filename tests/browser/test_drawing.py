"""Drawing touches only what differs, and data is never HTML."""

from __future__ import annotations

from typing import Any

DRAW = """
async ({ before, after }) => {
  const { h, render } = await import("/static/dom.js");
  const make = (items) => items.map(([tag, props, ...children]) => h(tag, props, ...children));
  render(document.body, ...make(before));
  const kept = [...document.body.children];
  const marks = new Map(kept.map((node) => [node, node.id]));
  render(document.body, ...make(after));
  return [...document.body.children].map((node) => [node.id, marks.get(node) ?? null]);
}
"""


def test_elements_keep_their_identity_by_key(bare_page: Any) -> None:
    before = [["p", {"key": name, "id": name}, name] for name in "abcd"]
    after = [["p", {"key": name, "id": name}, name] for name in "dbxa"]
    seen = bare_page.evaluate(DRAW, {"before": before, "after": after})
    assert seen == [["d", "d"], ["b", "b"], ["x", None], ["a", "a"]]


def test_focus_typed_text_selection_and_scroll_survive(bare_page: Any) -> None:
    seen = bare_page.evaluate(
        """async () => {
      const { h, render } = await import("/static/dom.js");
      const draw = (number) => render(document.body,
        h("p", { key: number }, `changes ${number}`),
        h("input", { id: "field", value: "" }),
        h("p", { id: "text" }, "this text is selected"),
        h("ul", { id: "list" }, Array.from({ length: 300 }, (_, n) => h("li", { key: n }, n, n === 3 && number))),
      );
      draw(1);
      const list = document.getElementById("list");
      for (const [name, value] of [["height", "60px"], ["overflow", "auto"]]) list.style.setProperty(name, value);
      const field = document.getElementById("field");
      field.focus();
      field.value = "half a wo";
      list.scrollTop = 500;
      draw(2);
      const typed = [document.activeElement.id, field.value, list.scrollTop];
      getSelection().selectAllChildren(document.getElementById("text"));
      draw(3);
      return [...typed, String(getSelection()), document.body.textContent.includes("changes 3")];
    }"""
    )
    assert seen == ["field", "half a wo", 500, "this text is selected", True]


def test_what_did_not_change_is_not_touched(bare_page: Any) -> None:
    seen = bare_page.evaluate(
        """async () => {
      const { h, render } = await import("/static/dom.js");
      const draw = (value) => render(document.body, Array.from({ length: 100 }, (_, n) =>
        h("p", { key: n, title: `t${n}`, onclick: () => n }, h("b", {}, n === 50 ? value : "same"))));
      draw("one");
      const changes = [];
      const watcher = new MutationObserver((found) => changes.push(...found));
      watcher.observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
      draw("two");
      await new Promise((done) => setTimeout(done));
      return changes.map((one) => [one.type, one.target.data ?? one.target.localName]);
    }"""
    )
    assert seen == [["characterData", "two"]]


def test_markup_in_data_is_text(bare_page: Any) -> None:
    hostile = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'
    seen = bare_page.evaluate(
        """async (hostile) => {
      const { h, render } = await import("/static/dom.js");
      render(document.body, h("p", { title: hostile, "aria-label": hostile }, hostile));
      await new Promise((done) => setTimeout(done, 50));
      return [document.querySelectorAll("img, script").length, document.body.textContent, window.pwned ?? null];
    }""",
        hostile,
    )
    assert seen == [0, hostile, None]
