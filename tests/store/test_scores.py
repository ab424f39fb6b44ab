import msgspec

from atrex.model import Score


def write(store, run, measurements, status):
    with store.start_run(run) as writer:
        for measurement in measurements:
            writer.append(measurement)
        writer.finish([], status)


def test_a_complete_run_is_scored_once(store, records):
    run = records.run()
    write(store, run, [records.measured(run, 1)], "complete")
    first = store.scores(run.run)
    path = store.path / "runs" / run.run / "scores.json"
    kept = msgspec.json.decode(path.read_bytes())
    kept["scores"][0]["score"] = 0.5
    path.write_bytes(msgspec.json.encode(kept))
    assert [score.score for score in store.scores(run.run)] == [0.5]
    path.unlink()
    assert store.scores(run.run) == first


def test_a_torn_or_older_score_is_computed_anew(store, records):
    run = records.run()
    write(store, run, [records.measured(run, 1)], "complete")
    first = store.scores(run.run)
    path = store.path / "runs" / run.run / "scores.json"
    path.write_bytes(b'{"schema_version": 1, "score')
    assert store.scores(run.run) == first
    path.write_bytes(msgspec.json.encode({"schema_version": 1, "score_version": 0, "scores": []}))
    assert store.scores(run.run) == first


def test_an_unfinished_run_is_scored_from_what_it_has(store, records):
    run = records.run()
    write(store, run, [records.measured(run, 1)], "interrupted")
    (score,) = store.scores(run.run)
    assert isinstance(score, Score)
    assert score.coverage == 0.1
    assert not (store.path / "runs" / run.run / "scores.json").exists()


def test_a_catalogue_without_gpu_time_has_no_score(store, records):
    run = msgspec.structs.replace(records.run(), shapes=())
    write(store, run, [], "complete")
    assert store.scores(run.run) == []
