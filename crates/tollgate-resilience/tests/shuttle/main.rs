//! Programs of several threads under schedules drawn at random, and by priorities (PCT). Build with
//! `RUSTFLAGS="--cfg tollgate_shuttle"`. A lost wake-up shows as a deadlock, which shuttle reports.
//!
//! The schedules are the same in each run, and so is what they find. `SHUTTLE_RANDOM_SEED` draws others.
#![cfg(tollgate_shuttle)]

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

mod breaker;

const SEED: u64 = 0x5EED;

/// Half of the schedules are uniform, half keep priorities and change them at three points. `TOLLGATE_TIMES` multiplies their number.
fn check(schedules: usize, program: fn()) {
    let times = std::env::var("TOLLGATE_TIMES").map_or(1, |times| times.parse().unwrap());
    let schedules: usize = times * schedules;
    let random = RandomScheduler::new_from_seed(SEED, schedules / 2);
    Runner::new(random, Config::default()).run(program);
    let by_priority = PctScheduler::new_from_seed(SEED, 3, schedules / 2);
    Runner::new(by_priority, Config::default()).run(program);
}
