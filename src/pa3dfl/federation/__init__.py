"""A federation: its rounds (`federation`), evaluation, robust aggregation, and where its state is kept.

    federation      the round as steps: sample, train, guard, aggregate, evaluate, keep
    evaluation      scores by rule of testing, the best of them, when to stop
    state           the plan, and the state that a round changes
    client_states   the store of the clients' private states: GPU memory, host memory, disk
    checkpoint      committed states, for `resume`
    robust          aggregation that limits what malicious clients can do

May use engines, methods and runs. Knows no method and no engine by name.
"""
