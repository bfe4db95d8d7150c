//! The integration tests, one binary.
#![cfg(not(tollgate_loom))]

/// How many cases a property is tried with: so many, or as many as `PROPTEST_CASES` says.
fn cases(few: u32) -> proptest::prelude::ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    proptest::prelude::ProptestConfig::with_cases(cases.unwrap_or(few))
}

mod adaptive;
mod adaptive_corners;
mod any_window;
mod any_window_rounds;
mod attack;
mod bad_input;
mod blocking;
mod boxed;
mod breaker;
mod breaker_corners;
mod breaker_history;
mod breaker_probes;
mod bucket_published;
mod bucket_verbs;
mod cancel_sweep;
#[cfg(feature = "channel")]
mod channel_semaphore;
mod coarse_clock;
mod compose;
mod compose_waits;
#[cfg(feature = "conformance")]
mod conformance;
#[cfg(feature = "fan-out")]
mod fan_out;
#[cfg(feature = "fan-out")]
mod fan_out_bounds;
#[cfg(feature = "fan-out")]
mod fan_out_ends;
#[cfg(feature = "fan-out")]
mod fan_out_outcomes;
#[cfg(feature = "fan-out")]
mod fan_out_slots;
#[cfg(feature = "governor")]
mod governed;
mod governor_oracle;
mod hostile_wakers;
mod keyed;
mod keyed_fair;
mod keyed_idle;
mod keyed_rate;
mod lease;
mod leg_panics;
mod line_published;
mod long_policies;
mod panic_sweep;
mod policy_dips;
#[cfg(feature = "policy-file")]
mod policy_file;
mod policy_inherit;
mod policy_line;
mod policy_linked;
mod policy_peaks;
mod policy_queue;
mod policy_reload;
#[cfg(feature = "policy-file")]
mod policy_run;
#[cfg(feature = "policy-file")]
mod policy_source;
mod policy_wholes;
#[cfg(feature = "pool")]
mod pool;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_cancelled;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_counts;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_details;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_family;
#[cfg(feature = "pool")]
mod pool_foreign_panics;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_kinds;
#[cfg(feature = "pool")]
mod pool_life;
#[cfg(feature = "pool")]
mod pool_limits;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_outcomes;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_own_queue;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_parity;
#[cfg(feature = "pool")]
mod pool_room;
#[cfg(feature = "pool")]
mod pool_scope;
#[cfg(all(feature = "pool", feature = "stats"))]
mod pool_shared_slots;
#[cfg(feature = "pool")]
mod pool_shelves;
#[cfg(feature = "pool")]
mod pool_sizes;
#[cfg(feature = "pool")]
mod pool_slots_line;
#[cfg(all(feature = "fan-out", feature = "tracing"))]
mod pool_spans;
#[cfg(feature = "pool")]
mod pool_stateful;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_task_bounds;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_task_corners;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_task_gate;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_task_groups;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_task_waits;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_tasks;
#[cfg(feature = "pool")]
mod pool_thread_waits;
mod quota;
mod rate_booked_changes;
mod rate_booked_twice_changed;
mod rate_bookings;
mod rate_bookings_model;
mod rate_conservation;
mod rate_corners;
mod rate_epochs;
mod rate_fixed_window;
mod rate_forgiven;
mod rate_hostile;
mod rate_leaky_bucket;
mod rate_oversized;
mod rate_published;
mod rate_replay;
mod rate_settled;
mod rate_token_bucket;
mod rate_trace;
mod rate_wakes;
mod rate_warmup;
mod rate_window;
mod rate_windows;
mod refusal_legs;
#[cfg(feature = "remote")]
mod remote;
#[cfg(feature = "remote")]
mod remote_age;
#[cfg(feature = "remote")]
mod remote_back;
#[cfg(feature = "remote")]
mod remote_change;
#[cfg(feature = "remote")]
mod remote_charge;
#[cfg(feature = "remote")]
mod remote_faults;
#[cfg(feature = "remote")]
mod remote_fence;
#[cfg(feature = "remote")]
mod remote_kinds;
#[cfg(feature = "remote")]
mod remote_leave;
#[cfg(feature = "remote")]
mod remote_store;
#[cfg(feature = "remote")]
mod remote_window;
#[cfg(feature = "remote")]
mod remote_world;
mod semaphore;
mod semaphore_corners;
mod semaphore_drained;
mod semaphore_orders;
mod semaphore_reference;
mod semaphore_resize;
#[cfg(feature = "stats")]
mod semaphore_stats;
mod semaphore_twin;
mod shed;
mod shed_corners;
mod status;
mod time;
mod turns;
mod waiting_room;
