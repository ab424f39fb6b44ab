"""Where a step's time on the GPU goes: busy, idle, launch-bound, exposed communication."""

import pytest

from atrex.trace.formats import read_recording
from atrex.trace.gaps import (
    NO_STEP,
    StepTimes,
    Times,
    launch_of_copies,
    number_steps,
    step_times,
    steps_without_kernels,
    summarise,
)
from atrex.trace.join import join
from atrex.trace.timeline import NO_LAUNCH, Timeline

INFERENCE = "tracelens/traces/inference"
B200 = "tracelens/traces/b200/eager_trace.json.gz"


class Work:
    """A timeline written by hand, in ns; kernels name the row of their launch."""

    def __init__(self):
        self.timeline = Timeline()
        self.launch = []
        self.step_of_launch = []
        self.communicates = []

    def call(self, start, returns, step=1, name="cudaLaunchKernel", correlation=NO_LAUNCH):
        """Add a runtime call and return its row."""
        launches = self.timeline.launches
        launches.name.append(self.timeline.names.id(name))
        launches.time.append(start)
        launches.duration.append(returns - start)
        launches.thread.append(self.timeline.threads.id((b"1", b"1")))
        launches.correlation.append(correlation)
        self.step_of_launch.append(step)
        return len(launches.name) - 1

    def kernel(self, start, end, row=None, stream=7, device=0, collective=False):
        """Add a kernel; without a row it has a launch of its own, long before it."""
        kernels = self.timeline.kernels
        kernels.name.append(self.timeline.names.id("kernel"))
        kernels.start.append(start)
        kernels.duration.append(end - start)
        kernels.device.append(device)
        kernels.stream.append(stream)
        self.launch.append(self.call(-1000, -990) if row is None else row)
        self.communicates.append(collective)
        return self

    def copy(self, start, end, correlation=NO_LAUNCH):
        copies = self.timeline.copies
        copies.name.append(self.timeline.names.id("Memcpy DtoD"))
        copies.start.append(start)
        copies.duration.append(end - start)
        copies.correlation.append(correlation)
        copies.device.append(0)
        copies.stream.append(9)
        return self

    def annotation(self, text, start, end, thread=b"1"):
        annotations = self.timeline.annotations
        annotations.what.append(self.timeline.names.id(text))
        annotations.start.append(start)
        annotations.end.append(end)
        annotations.thread.append(self.timeline.threads.id((b"1", thread)))
        return self

    def steps(self):
        return step_times(self.timeline, self.launch, self.step_of_launch, self.communicates)

    def times(self):
        (found,) = self.steps()
        return found.times


@pytest.fixture
def work():
    return Work()


def test_busy_is_the_union_of_kernels_on_one_stream(work):
    work.kernel(0, 100).kernel(90, 150).kernel(200, 230)
    assert work.times() == Times(
        span_ns=230,
        busy_ns=180,
        compute_ns=180,
        exposed_communication_ns=0,
        idle_ns=50,
        launch_bound_ns=0,
    )


def test_busy_is_the_union_over_all_streams(work):
    work.kernel(0, 100, stream=7).kernel(20, 60, stream=8).kernel(80, 130, stream=8)
    times = work.times()
    assert (times.span_ns, times.busy_ns, times.idle_ns) == (130, 130, 0)


def test_the_order_of_the_rows_does_not_matter(work):
    work.kernel(200, 230).kernel(90, 150).kernel(0, 100)
    times = work.times()
    assert (times.span_ns, times.busy_ns, times.idle_ns) == (230, 180, 50)


def test_a_gap_is_launch_bound_until_the_launch_of_its_kernel_returned(work):
    work.kernel(0, 100).kernel(200, 300, work.call(150, 160))
    times = work.times()
    assert (times.idle_ns, times.launch_bound_ns) == (100, 60)


def test_a_gap_whose_kernel_was_launched_before_it_is_not_launch_bound(work):
    work.kernel(0, 100).kernel(200, 300, work.call(80, 90))
    times = work.times()
    assert (times.idle_ns, times.launch_bound_ns) == (100, 0)


def test_a_launch_that_returns_after_its_kernel_began_binds_the_whole_gap_and_no_more(work):
    work.kernel(0, 100).kernel(200, 300, work.call(150, 260))
    assert work.times().launch_bound_ns == 100


def test_a_gap_before_a_replay_is_launch_bound_and_gaps_inside_it_are_not(work):
    replay = work.call(130, 900, name="cudaGraphLaunch")
    work.kernel(0, 100).kernel(200, 300, replay).kernel(350, 400, replay)
    times = work.times()
    assert (times.idle_ns, times.launch_bound_ns) == (150, 100)


def test_a_gap_that_ends_with_a_kernel_without_launch_is_idle_and_no_more(work):
    work.step_of_launch = [NO_STEP] * 4
    row = work.call(-20, -10, step=NO_STEP)
    work.kernel(0, 100, row).kernel(150, 160, NO_LAUNCH).kernel(200, 210, work.call(1, 170, 0))
    times = work.times()
    assert (times.idle_ns, times.launch_bound_ns) == (90, 10)


def test_launch_bound_time_is_unknown_without_any_launch(work):
    work.kernel(0, 100, NO_LAUNCH).kernel(150, 160, NO_LAUNCH)
    (found,) = work.steps()
    assert (found.step, found.times.idle_ns, found.times.launch_bound_ns) == (NO_STEP, 50, None)


def test_launch_bound_time_is_unknown_where_the_clocks_are_not_aligned(work):
    for start in range(0, 9800, 100):
        work.kernel(start, start + 90)
    late = [work.call(20_000, 20_010) for _ in range(2)]  # 2 of 100 start before their launch
    work.kernel(9800, 9890, late[0]).kernel(9900, 9990, late[1])
    work.kernel(0, 5, device=1).kernel(10, 20, device=1)
    first, second = work.steps()
    assert (first.device, first.times.launch_bound_ns) == (0, None)
    assert (second.device, second.times.launch_bound_ns) == (1, 0)


def test_one_early_kernel_of_a_hundred_is_forgiven(work):
    for start in range(0, 9900, 100):
        work.kernel(start, start + 90)
    work.kernel(9900, 9990, work.call(20_000, 20_010))
    assert work.times().launch_bound_ns == 10


def test_communication_is_exposed_where_nothing_else_runs(work):
    work.kernel(0, 100).kernel(60, 180, stream=8, collective=True).kernel(150, 160)
    times = work.times()
    assert times.exposed_communication_ns == 70  # 100 to 150 and 160 to 180
    assert (times.compute_ns, times.busy_ns, times.idle_ns) == (110, 180, 0)


def test_communication_behind_compute_and_copies_is_not_exposed(work):
    work.call(-50, -40, name="cudaMemcpyAsync", correlation=5)
    work.kernel(0, 100).kernel(20, 90, stream=8, collective=True)
    work.kernel(110, 150, stream=8, collective=True).copy(105, 160, correlation=5)
    times = work.times()
    assert (times.exposed_communication_ns, times.compute_ns) == (0, 155)


def test_overlapping_collectives_are_exposed_once(work):
    work.kernel(0, 50, collective=True).kernel(20, 80, stream=8, collective=True)
    times = work.times()
    assert (times.exposed_communication_ns, times.busy_ns, times.compute_ns) == (80, 80, 0)


def test_copies_of_a_step_are_busy_time_and_their_calls_bind_like_launches(work):
    work.call(120, 130, name="cudaMemcpyAsync", correlation=5)
    work.kernel(0, 100).copy(150, 200, correlation=5)
    (found,) = work.steps()
    assert (found.kernels, found.times.busy_ns) == (1, 150)
    assert (found.times.idle_ns, found.times.launch_bound_ns) == (50, 30)


def test_a_call_that_waits_for_its_copy_binds_only_before_it_began(work):
    work.call(110, 300, name="cudaMemcpy", correlation=5)
    work.kernel(0, 100).copy(150, 200, correlation=5)
    assert work.times().launch_bound_ns == 10


def test_a_copy_belongs_to_the_one_call_of_its_correlation(work):
    work.call(0, 1, name="cudaMemcpyAsync", correlation=5)
    work.call(0, 1, name="cudaEventRecord", correlation=6)
    work.call(0, 1, name="cudaMemsetAsync", correlation=6)
    work.call(0, 1, name="cudaMemsetAsync", correlation=7)
    work.call(0, 1, name="cudaMemsetAsync", correlation=7)
    for correlation in (5, 6, 7, NO_LAUNCH):
        work.copy(0, 1, correlation)
    assert list(launch_of_copies(work.timeline)) == [0, 2, NO_LAUNCH, NO_LAUNCH]


def test_a_step_is_its_own_kernels_even_where_another_runs_between(work):
    first, second = work.call(-50, -40, step=1), work.call(-30, -20, step=2)
    work.kernel(0, 100, first).kernel(100, 160, second).kernel(160, 200, work.call(-10, -5, step=1))
    one, two = work.steps()
    assert (one.step, one.start_ns, one.kernels) == (1, 0, 2)
    assert (one.times.span_ns, one.times.busy_ns, one.times.idle_ns) == (200, 140, 60)
    assert (two.step, two.start_ns, two.times.span_ns, two.times.idle_ns) == (2, 100, 60, 0)


def test_devices_are_kept_apart(work):
    row = work.call(-50, -40)
    work.kernel(0, 100, row, device=0).kernel(50, 300, row, device=1).kernel(
        500, 600, row, device=0
    )
    assert [(each.device, each.times.span_ns, each.times.busy_ns) for each in work.steps()] == [
        (0, 600, 200),
        (1, 250, 250),
    ]


def test_what_ran_before_the_window_is_no_step(work):
    work.kernel(0, 100, NO_LAUNCH).kernel(200, 300, work.call(150, 160, step=1))
    assert [(each.step, each.kernels, each.times.span_ns) for each in work.steps()] == [
        (NO_STEP, 1, 100),
        (1, 1, 100),
    ]


def test_steps_are_occurrences_of_outermost_step_annotations(work):
    work.annotation("step[DECODE bs=4]", 100, 200).annotation("step[DECODE bs=4]", 200, 300)
    work.annotation("execute_4_context_0(0)_generation_4(4)", 110, 190)
    work.annotation("anything", 0, 1000).annotation("step[DECODE bs=8]", 0, 1000, thread=b"2")
    for time in (99, 100, 150, 199, 200, 299, 300):
        work.call(time, time + 1)
    steps, rows = number_steps(work.timeline)
    assert list(steps) == [0, 2, 2, 2, 3, 3, 0]
    assert rows == [4, 0, 1]  # by start; the annotation of the other thread encloses no launch


def test_a_step_that_launched_but_lost_its_kernels_is_found(work):
    work.call(0, 1, step=1)
    work.call(0, 1, step=2, name="cudaEventRecord")
    work.call(0, 1, step=4, name="cudaMemcpyAsync", correlation=5)
    work.call(0, 1, step=NO_STEP)
    work.kernel(0, 10, work.call(0, 1, step=3)).copy(20, 30, correlation=5)
    steps = work.steps()
    assert steps_without_kernels(work.timeline, work.step_of_launch, steps) == [1]


def step(number, span, busy, bound, exposed=0, kernels=2):
    times = Times(
        span_ns=span,
        busy_ns=busy,
        compute_ns=busy - exposed,
        exposed_communication_ns=exposed,
        idle_ns=span - busy,
        launch_bound_ns=bound,
    )
    return StepTimes(device=0, step=number, start_ns=0, kernels=kernels, times=times)


def test_steps_are_summed_up_by_form_with_how_many_there_were():
    steps = [
        step(1, 100, 80, 5, exposed=20),
        step(2, 300, 200, 10, exposed=20),
        step(3, 110, 80, 15, exposed=11),
        step(4, 900, 900, 0, kernels=7),
    ]
    prefill, decode = summarise(steps, {1: "decode", 2: "decode", 3: "decode", 4: "prefill"})
    assert (prefill.form, prefill.steps, prefill.kernels) == ("prefill", 1, 7)
    assert (decode.form, decode.steps, decode.kernels) == ("decode", 3, 6)
    assert decode.total == Times(
        span_ns=510,
        busy_ns=360,
        compute_ns=309,
        exposed_communication_ns=51,
        idle_ns=150,
        launch_bound_ns=30,
    )
    assert decode.median == Times(
        span_ns=110,
        busy_ns=80,
        compute_ns=69,
        exposed_communication_ns=20,
        idle_ns=30,
        launch_bound_ns=10,
    )
    assert decode.exposed_share == pytest.approx(0.1)


def test_work_outside_steps_and_steps_without_kernels_are_no_part_of_a_summary():
    steps = [step(NO_STEP, 5000, 10, 0), step(1, 100, 80, 5), step(2, 9, 9, 0, kernels=0)]
    (found,) = summarise(steps, {1: "decode", 2: "decode"})
    assert (found.steps, found.total.span_ns) == (1, 100)


def test_a_sum_with_unknown_launch_bound_time_is_unknown():
    (found,) = summarise([step(1, 10, 8, 1), step(2, 10, 8, None)], {1: "decode", 2: "decode"})
    assert (found.total.launch_bound_ns, found.median.launch_bound_ns) == (None, None)
    assert found.total.idle_ns == 4


@pytest.fixture
def only_step(captures):
    def read(file, communicates=lambda name: False):
        timeline = read_recording(captures / file).timeline
        collective = [communicates(name) for name in timeline.names.values]
        steps, _ = number_steps(timeline)
        (found,) = step_times(
            timeline,
            join(timeline).launch,
            steps,
            [collective[name] for name in timeline.kernels.name],
        )
        return found

    return read


# file, kernels, span, busy, launch-bound ns; total, busy, idle ms as another analyser prints them
GOLDEN = [
    (f"{INFERENCE}/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz",
     527, 987_288_887, 492_806_877, 1_096_684,
     (987.28888671875, 492.8068642578125, 494.4820224609375)),
    (f"{INFERENCE}/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
     555, 473_749_943, 9_772_926, 423_048, (473.749943359375, 9.7729287109375, 463.9770146484375)),
    (f"{INFERENCE}/vllm_prefilldecode_piecewise/graph_execution.json.gz",
     413, 156_466_417, 156_085_793, 0, (156.466416015625, 156.085798828125, 0.3806171875)),
]  # fmt: skip


@pytest.mark.parametrize(("file", "kernels", "span", "busy", "bound", "other"), GOLDEN)
def test_step_times_of_a_capture_agree_with_another_analyser(
    only_step, file, kernels, span, busy, bound, other
):
    found = only_step(file)
    times = found.times
    assert (found.step, found.kernels) == (1, kernels)
    assert (times.span_ns, times.busy_ns, times.launch_bound_ns) == (span, busy, bound)
    ours = [times.span_ns / 1e6, times.busy_ns / 1e6, times.idle_ns / 1e6]
    assert ours == pytest.approx(other, abs=20e-6)  # it reckons in doubles of microseconds


def test_exposed_communication_of_the_b200_capture(only_step):
    found = only_step(B200, lambda name: "nccl" in name or "all_reduce" in name)
    assert (found.kernels, found.times) == (
        768,
        Times(
            span_ns=84_487_178,
            busy_ns=11_596_482,
            compute_ns=9_454_981,
            exposed_communication_ns=2_141_501,
            idle_ns=72_890_696,
            launch_bound_ns=70_683_616,
        ),
    )
