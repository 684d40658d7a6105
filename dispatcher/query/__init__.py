"""Questions about a workspace, answered as data for commands, the page and Python.

    files --snapshot_reader--> Snapshot --values, job_columns--> rows and groups --cli/ web/ api--> text, JSON, frames

Only readers open files; everything else is pure: the same snapshot gives the same rows. Commands and the page parse
what is asked for, call a function here and render what it returns.

Snapshots   snapshot.py: the state of everything at one moment. snapshot_reader.py, manifests.py and attempts.py read
            it, ran.py what attempts ran with. A reader that stays (`status --watch`, the page) makes the next
            snapshot from the last one and the jobs that changed (listed_records.py); what is asked of all jobs is
            answered without unpacking their records (run_state/records.py: ByState).
Columns     job_columns.py: a fact about jobs is one Column: its value, unit, text and title.
            values.py: JobValues has the values of all jobs by key, each value that occurs as a number.
Filters     selection.py: the jobs that names, states and conditions select. changes.py, scope.py: what a request does
            to them. known_words.py: keys and values for completion.
Order       sorting.py: rows and jobs by columns. values.py: sort_key is the one order of values.
Groups      groups.py: rows by the values of keys, with their labels; numbers.py: mean, deviation, Spread.
            pivot.py: tables of results. comparing.py: as many jobs of each group. parameters.py: what a parameter
            explains.
Results     results/: rows and frames of all results, as files are at one moment; known_results.py: their numbers, read
            little by little and kept.
Metrics     metric_lines.py parses lines, metrics.py reads them as far as files have grown (JobMetrics) and says which
            count, curves.py makes curves of them and their mean. plots/ draws, export/ sends them elsewhere.
Usage       usage/: where the time of slots and GPUs went.
Screen      overview.py, pace.py, failures.py, waiting.py, pods.py, attention.py and others, one idea each: what
            `status`, `pods` and the first screen of the page tell.

To add a column of jobs: an entry of job_columns.COLUMNS. A table: a function here, a command in cli/ or a route in
web/app.py that renders it, and a method of api.py that calls it.
"""
