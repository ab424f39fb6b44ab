-- The database that is built from a store's files; never written otherwise, always rebuildable.
-- Times are integer nanoseconds, ratios fractions, missing is null; axes, options, counts are JSON.

create table built (                 -- one row: digests of what this database was built from
    form varchar,                    -- this file, and the version of atrex
    parts varchar                    -- names, sizes and times of the files that are no run's
);

create table source (                -- the same for each run
    run varchar, digest varchar
);

create table seen_environment (      -- run is empty where peaks or compilations came from
    run varchar, environment varchar,
    device varchar, kind varchar, cpu varchar, cores integer, kernel varchar, python varchar,
    atrex varchar, torch varchar, triton varchar, numba varchar, compiler varchar,
    driver varchar, cuda varchar,
    sm_clock_mhz integer, mem_clock_mhz integer, power_limit_w integer, sandbox_tier integer,
    huge_pages boolean
);

create table run (
    run varchar,
    kind varchar, started varchar, finished varchar, status varchar,
    command varchar,                 -- JSON array of arguments
    seed_sha varchar, seed varchar,  -- JSON arrays, one for each session
    schema_version integer, atrex_version varchar,
    environment varchar, device varchar, device_kind varchar,
    catalogue varchar, options varchar,
    selected integer,                -- number of workloads asked for
    torn_bytes integer               -- length of an unfinished last record, which is left out
);

create table candidate (
    run varchar, candidate varchar, candidate_sha varchar,
    operator varchar, backend varchar, dtypes varchar, path varchar
);

create table workload (              -- all that any run or trace knows
    workload varchar,
    operator varchar, axes varchar, dtype varchar
);

create table shape (                 -- the catalogue that each run was scored on
    run varchar, catalogue varchar, workload varchar,
    operator varchar, axes varchar, dtype varchar,
    phase varchar, source varchar, calls bigint, gpu_ns bigint, time_source varchar,
    weight double,                   -- share of gpu_ns; sums to 1 over a run
    selected boolean
);

create table measurement (           -- every attempt
    run varchar, line bigint,        -- place in the run's journal
    workload varchar, operator varchar, axes varchar, dtype varchar,
    candidate varchar, candidate_sha varchar, attempt integer, environment varchar,
    outcome varchar, kind varchar, reason varchar, method varchar, cases varchar[],
    time_ns bigint, low_ns bigint, high_ns bigint, noise double,
    samples_ns bigint[], baseline_samples_ns bigint[], first_ns bigint, verified bigint,
    baseline varchar, baseline_ns bigint, baselines_ns varchar, baselines_failed varchar,
    sol_ns bigint, flop varchar, moved_bytes bigint,
    s double, overhead_bound boolean, kernel_share double, attribution varchar,
    max_abs_error double, max_rel_error double, first_mismatch bigint[],
    peak_bytes bigint, baseline_peak_bytes bigint, compile_ns bigint, prepare_ns bigint,
    stop_reason varchar, stage_ns varchar
);

create table score (
    run varchar, candidate varchar, candidate_sha varchar, definition varchar,
    score double, low double, high double, coverage double, score_selected double,
    with_fallbacks double, weight_correct double, outcomes varchar, score_version integer
);

create table peak (
    environment varchar, stamp varchar,
    device varchar, pipe varchar, kind varchar,
    value double, low double, high double,       -- FLOP/s, byte/s or ns
    n integer, source varchar, date varchar
);

create table trace (
    trace varchar,
    path varchar, format varchar, gpu varchar, events bigint, kernels bigint,
    gpu_ns bigint, busy_ns bigint, span_ns bigint,
    launched_ns bigint, attributed_ns bigint, shaped_ns bigint,
    rung_ns varchar, trace_coverage double, dropped varchar, repaired varchar,
    truncated boolean, schema_version integer
);

create table fact (
    operator varchar, kind varchar, workload varchar, axes varchar, dtype varchar,
    trace varchar, phase varchar, calls bigint, kernels bigint, gpu_ns bigint,
    rung varchar, time_source varchar
);

create table deployment (            -- the fleet that weighs the traces; a row for each trace
    deployment varchar,
    model varchar, gpu varchar, gpus bigint, hours_per_day double,
    trace varchar,
    factor double                    -- ns of a day that 1 ns of kernel time in the trace stands
);                                   -- for; null if the store lacks the trace

create table unattributed (
    trace varchar, kernel varchar, class varchar,
    op varchar, dims varchar, types varchar, concrete varchar,  -- as recorded, "" if not
    grid varchar, block varchar,
    calls bigint, gpu_ns bigint
);

create table compiled (              -- kernels compiled for a target, whether or not it was there
    stamp varchar, line bigint,      -- when, and place in that report
    environment varchar, candidate varchar, candidate_sha varchar,
    workload varchar, operator varchar, axes varchar, dtype varchar,
    target varchar, kernel varchar, place varchar,
    arguments varchar, constants varchar,        -- what the launch was specialised to
    num_warps integer, num_stages integer,
    error varchar,                   -- empty where it compiles and fits
    autotuned boolean, passed_over boolean,
    registers integer, spill_store_bytes bigint, spill_load_bytes bigint,
    shared_bytes bigint, shared_limit_bytes bigint, tensor_memory_columns integer,
    tensor_core varchar, async_copies varchar,   -- instructions by family and kind
    compile_ns bigint, binary_bytes bigint
);

create view environment as
select distinct * exclude (run) from seen_environment;

-- What table workload is filled from; the order of axes may differ between sources.
create view seen_workload as
select workload, min(operator) as operator, max(axes) as axes, min(dtype) as dtype
from (
    select workload, operator, axes, dtype from shape
    union all
    select workload, operator, axes, dtype from measurement
    union all
    select workload, operator, axes, dtype from fact where workload <> ''
    union all
    select workload, operator, axes, dtype from compiled
)
group by workload;

-- What table latest_measurement is filled from, for some runs.
create macro winner(runs) as table
with last as (
    select run, max_by(line, (attempt, line)) as line
    from measurement
    where list_contains(runs, run)
    group by run, candidate_sha, workload
)
select m.* exclude (samples_ns, baseline_samples_ns), coalesce(len(m.samples_ns), 0) as samples,
       s.weight, s.phase, s.gpu_ns, s.calls, s.time_source, r.started, r.device, r.device_kind
from last
join measurement m on m.run = last.run and m.line = last.line
join run r on r.run = m.run
left join shape s on s.run = m.run and s.workload = m.workload
where list_contains(runs, m.run);

-- The last attempt of every candidate on every workload of a run, with its weight in that run's
-- catalogue and the run's device; samples is their number.
create table latest_measurement as from winner([]::varchar[]);

-- Raw samples; a block is an ABBA quartet, which holds two of each arm.
create view sample as
select run, workload, candidate, candidate_sha, attempt, arm, i, i // 2 as block, ns
from (
    select run, workload, candidate, candidate_sha, attempt, 'candidate' as arm,
           unnest(samples_ns) as ns, generate_subscripts(samples_ns, 1) - 1 as i
    from measurement
    union all
    select run, workload, candidate, candidate_sha, attempt, 'baseline' as arm,
           unnest(baseline_samples_ns) as ns, generate_subscripts(baseline_samples_ns, 1) - 1 as i
    from measurement
);

-- GPU time by trace, phase and workload; shares are of the trace's whole GPU time, and operators,
-- classes and unknown kernels together make it up.
create view gpu_time as
select f.trace, f.phase, f.kind, f.operator, f.workload, f.axes, f.dtype, f.time_source,
       sum(f.calls)::bigint as calls, sum(f.gpu_ns)::bigint as gpu_ns,
       sum(f.gpu_ns) / nullif(any_value(t.gpu_ns), 0) as share
from fact f join trace t on t.trace = f.trace
group by all;

-- How far each trace was understood, from all GPU time down to complete shapes.
create view funnel as
select trace, path, level, ns as gpu_ns, ns / nullif(total_ns, 0) as share
from (
    select trace, path, gpu_ns as total_ns,
           unnest(['gpu', 'launched', 'attributed', 'shaped']) as level,
           unnest([gpu_ns, launched_ns, attributed_ns, shaped_ns]) as ns
    from trace
);

-- The newest peak of every device, pipe and kind.
create view latest_peak as
select * from peak
qualify row_number() over (partition by device, pipe, kind order by stamp desc) = 1;

-- What the newest compilation of each candidate found for each workload and target.
create view latest_compiled as
select * from compiled
qualify rank() over (partition by candidate_sha, workload, target order by stamp desc) = 1;

create view outcome_count as
select run, candidate, outcome, count(*) as workloads, sum(weight) as weight
from latest_measurement
group by all;
