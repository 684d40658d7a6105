"""Running things on a host without ever waiting for it.

operations   What a host is asked to do, and what it answers: plain data.
agent/       The program that carries operations out on the host. It is sent there with every call.
agent_source Its modules as one program.
connection   One host, and calls of the agent there.
transport    How a host is reached: this machine, or another one over ssh; divided: a host in two places.
exchange     One request to one agent, and its answers.
ssh          The ssh client: its options, its shared connections, what its failures mean.
asking       The same question to several hosts at once, for commands that wait.
follow       The command that follows a log where it is written, for `logs -f`.
programs     Child processes, in sessions of their own.
"""
