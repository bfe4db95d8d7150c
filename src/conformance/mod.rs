//! The conformance suite: the eight [laws](crate::limiter#the-laws) as checks to run on a limiter of your own.
//!
//! Describe what your limiter does, once; the suite makes as many of it as it needs, each on a manual clock of its own,
//! and compares what became of them. It never sleeps, and real time enters in one place only: an attempt that has not
//! come back after [`patience`](Suite::patience) is taken to block, which is law 1.
//!
//! ```
//! use std::time::Duration;
//! use tollgate::conformance::Suite;
//! use tollgate::Semaphore;
//!
//! let report = Suite::of_permits(3, |_clock| Semaphore::new(3))
//!     .loosen(|semaphore| semaphore.set_limit(4))
//!     .run()
//!     .unwrap();
//! assert!(report.checks(6) > 0);
//! ```
//!
//! Besides the laws it checks, where that is asked for, that queues [take turns](Suite::takes_turns) at the limiter.
//!
//! Use the feature in tests only: `tollgate = { version = "…", features = ["conformance"] }` under
//! `[dev-dependencies]`.

mod guards;
mod laws;
mod recorder;
mod suite;
mod turns;
mod waits;
mod world;

pub use suite::{Report, Suite, Violation};
