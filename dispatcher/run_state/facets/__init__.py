"""Facets: what the journal says beside the records, each concern in a module of its own. Pure.

    pauses      what claiming is paused for, and the failures that may pause it
    refusals    hand edits that could not be used
    gpu_idle    running attempts that leave their GPUs idle
    studies     adaptive sweeps and their trials
    notices     what people are still to be told, and what became of it

A module has the notes of its concern (the data of its lines in the journal), the facet (their fold), and the words in
which people are told of it (`news`). `facet.Facet` is what a facet does, and `table.Facets` lists them: a new one is a
module here, its events in events.Event, and a line in that table. The fold, transactions, snapshots and saved folds go
through the table and name no facet. What a pod does about a concern is in pod/.

Other things that the journal says are fields of a record: the copy of the code (`snapshot`), external jobs
(`external`), holds (`state`). Nothing but the record is needed to know them, so they have no facet.
"""
