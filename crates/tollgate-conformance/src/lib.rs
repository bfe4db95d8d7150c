//! Checks the nine [laws](tollgate::limiter#the-laws) of a limiter: a test suite for limiters of your own.
//!
//! Describe your limiter once. The suite makes as many instances as it needs, each on its own manual clock, and compares their
//! admissions. It never sleeps. Real time matters in one place only: an attempt that has not returned after
//! [`patience`](Suite::patience) counts as blocked, which breaks law 8.
//!
//! ```
//! use tollgate::Semaphore;
//! use tollgate_conformance::Suite;
//!
//! let report = Suite::of_permits(3, |_clock| Semaphore::new(3))
//!     .loosen(|semaphore| semaphore.set_limit(4))
//!     .run()
//!     .unwrap();
//! assert!(report.checks(6) > 0);
//! ```
//!
//! Law 7 is checked on request: policies [take turns](Suite::takes_turns) at the limiter.
//!
//! The crate uses the public interface of tollgate only. It belongs under `[dev-dependencies]`.
#![forbid(unsafe_code)]

mod guards;
#[cfg(feature = "inputs")]
pub mod inputs;
mod laws;
mod recorder;
mod suite;
mod turns;
mod waits;
mod world;

pub use suite::{Report, Suite, Violation};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
