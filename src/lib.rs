//! `tollgate` decides whether work may start now.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algo;
mod ask;
#[cfg(feature = "conformance")]
#[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
pub mod conformance;
pub mod limiter;
mod permit;
pub mod policy;
pub mod rate;
mod refusal;
pub mod semaphore;
pub mod sync;
mod ticket;
pub mod time;

pub use ask::{Ask, Cost, Demand, MAX_COSTS};
pub use limiter::{Limiter, LimiterExt, Outcome, Settlement};
pub use permit::{Permit, Reservation, Unsettled};
pub use policy::{And, BoxLimiter, Legs, Policy, PolicyBuilder, PolicyError};
pub use rate::{BucketTicket, Inherit, Quota, QuotaError, SlidingWindow, TokenBucket, WindowError, WindowTicket};
pub use refusal::{Due, ReadyAt, Reason, Refusal, Rejection, Wait};
pub use semaphore::{
    AcquireError, AcquireTimeoutError, OwnedSemaphorePermit, Semaphore, SemaphorePermit, SemaphoreTicket,
    TryAcquireError,
};
pub use ticket::{BoxTicket, Ticket};
pub use time::{Clock, Instant, ManualClock, Pass};
