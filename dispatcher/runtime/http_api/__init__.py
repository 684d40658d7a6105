"""Requests to a model behind HTTP: each is answered once, whatever dies in between. `jobs.api_rollouts` is the job.

What counts as answered: the response was received completely (its framing is complete and its body is JSON), and its
line is synced to the disk. Only then is another one sent in its place. So a kill loses at most what was in flight,
`concurrency` requests: those that were still being computed, and those whose response was received, or waited in the
socket, in the milliseconds before its line was written. Only these are sent again, with the same idempotency key.

    config      ApiConfig: the address, the key, limits and retries
    exchange    one request over a pool of connections (httpx), with a deadline for the whole exchange
    verdict     what a response means: answered, try again, refused, or a fault that ends the job
    completion  what a chat completion says: an answer, a text that was cut, calls of tools, a refusal, nothing
    open_files  as many open files as there may be connections
    pace        requests per minute, and pauses that the API asks for
    responses   the responses on disk, found by the content of their requests
    request_source all requests in order, with their hashes
    workers     bounded concurrency: an event loop that sends, retries and records; monitor: the main thread meanwhile
    key         the API key: where it comes from, and how it is kept out of everything that is written

The responses. `responses/` in the job's results holds one file per run, `1.jsonl`, `2.jsonl`, ..., with a line per
answered request. A run writes only its own file, which it has created exclusively, and reads those of all earlier runs.
So an attempt that was taken for dead and comes back cannot damage anything: its lines are in its own file. It stops
sending within a second after `superseded` appears in its directory.

A request is known by the SHA-256 of its path and body, without host and headers: an edited prompt is sent again, and a
server on another port is not asked again. Identical requests (several samples of one prompt) are counted: the second
one is `HASH-2`. There is no cursor but this: a run continues with the first request in order that has no line. To have
a request sent again, remove its line with an editor while the job does not run.
"""
