"""The page: a server on the loopback interface that shows one workspace in a browser. `dispatcher web` starts it.

    browser --GET /api/...--> guard --> app --> board      one thread; all that is asked of records and entries
                                            \\-> files      some threads; logs and metrics
                                            \\-> changer    one thread; changes, with a store of its own

The board (board.py) is the one reader for all viewers. While a page is open, it reads every two seconds what was
appended to the journal and what else has changed, takes no lock and writes nothing; what no request needs is not read.
Each time that something was different it has a new version, and keeps which jobs and which parts of the first screen
changed. `GET /api/changes?since=` compares two numbers when nothing has.

Ages. `data_at` is when the data were true: now, while a pod is seen to write here; else the newest time that the data
themselves tell, because a copy of a workspace does not change and is not news. When the files cannot be read, every
answer is 503 and says why: an old answer is never given for a new one.

Security (guard.py). The other accounts of a host can connect to its loopback interface, and a page of another site can
make the browser do so. So each start makes a token of 256 bits, which is printed as a link and exchanged for a cookie;
the Host must be a loopback name (a rebound name is refused); what a page of another origin sends is refused; changes
need the option --allow-changes, the page's own Origin and a header that no form can send. Connections without a session
are bounded in number and time (connection_limit.py), so that they cannot lock a viewer out.

What is shown is asked of dispatcher/query: this package parses requests and writes answers that have bounds. One module
each: app.py has the routes, overview.py what the first screen shows, matrix.py, jobs.py, comparing.py and curves.py
their answers, logs.py logs, pods.py pods, ledger.py the account of a week, changing.py changes.
The extra `web` has what it needs; nothing else imports this package.
"""
