//! Records requests and what came of them, so that another version of a policy can be tried on them.
//!
//! An [`AdmissionLog`] keeps a bounded number of records in memory. The program writes them out when it likes, as lines of CSV. The
//! example `lab` reads such a file: `lab plan old.toml new.toml --log FILE` lists the requests that would be decided otherwise.
//!
//! ```
//! # use tollgate_observe::record::AdmissionLog;
//! # use tollgate::{Ask, Cost, ManualClock, Outcome, Policy, Semaphore};
//! # use std::time::Duration;
//! const TOKENS: Cost = Cost::new("tokens");
//! let clock = ManualClock::new();
//! let policy = Policy::builder().limit(Semaphore::new(1).named("slots")).on(&clock).max_queue(0).build()?;
//! let log = AdmissionLog::new(1_000, &[TOKENS]);
//! let policy = log.record(policy);
//! clock.run(async {
//!     let permit = policy.admit(Ask::one().cost(TOKENS, 300)).await.unwrap();
//!     clock.advance(Duration::from_millis(250));
//!     assert!(policy.admit(Ask::one().cost(TOKENS, 50)).await.is_err());
//!     permit.finish(Outcome::Success);
//! });
//! let mut file = Vec::new();
//! assert_eq!(log.write(&mut file)?, 2);
//! assert_eq!(
//!     String::from_utf8(file)?,
//!     "at,weight,calls,waited,leg,hold,failed,tokens,tokens.used\n\
//!      0.250000000,1,1,0.000000000,slots,,,50,\n\
//!      0.000000000,1,1,0.000000000,,0.250000000,no,300,300\n"
//! );
//! # use tollgate::LimiterExt;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod log;
mod recorded;

pub use log::AdmissionLog;
pub use recorded::Recorded;
