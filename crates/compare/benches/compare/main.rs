//! Tollgate beside what people use today, in one process: one line per row and peer, `name ours peer theirs ratio`.
//!
//! `cargo bench -p tollgate-compare --bench compare -- [FILTER]...` runs the rows whose names contain a filter. A ratio above one means
//! that the peer costs more. There is no pass and no fail.
//!
//! The sides of a row take turns in batches of 0.3 ms, in rotating order, and the tenth percentiles of their wall time
//! per operation are compared. Contended rows go by the CPU time of the process. Absolute figures of a busy machine
//! mean little; ratios of one run repeat within a few per cent.
//!
//! Bytes are compared by the bench `memory`: counting them replaces the allocator, which would slow these rows.

mod breaker;
mod budget;
mod composite;
mod fan_out;
mod harness;
mod keyed;
mod layer;
mod pool;
mod rate;
mod semaphore;
mod waiting;

fn main() {
    // cargo passes `--bench`, and whatever stands after `--`.
    let filters = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    let rows = harness::Rows::new(filters.collect());
    println!(
        "{:<40} {:>12} {:<18} {:>12} {:>8}",
        "name", "ours", "peer", "theirs", "ratio"
    );
    semaphore::rows(&rows);
    rate::rows(&rows);
    keyed::rows(&rows);
    composite::rows(&rows);
    budget::rows(&rows);
    pool::rows(&rows);
    fan_out::rows(&rows);
    breaker::rows(&rows);
    layer::rows(&rows);
    waiting::rows(&rows);
}
