//! Rates: how many may start per time.
//!
//! | type | what it is | prefer it when |
//! |---|---|---|
//! | [`TokenBucket`] | a rate with a burst, exact, one atomic word | nearly always |
//! | [`SlidingWindow`] | at most so many in *any* window of a length | an upstream counts so, or bursts must not add up |
//! | [`SlidingLog`] | the same, exact to the instant | memory for every admission in a window is no matter |
//! | [`FixedWindow`] | at most so many per window, counted anew at each boundary | a quota is billed by windows of a fixed length |
//! | [`LeakyBucket`] | one after the other, evenly spaced | what is behind it cannot take bursts |
//! | [`Warmup`] | evenly spaced, and slower after idle time | what is behind it must get warm first |
//!
//! A rate by itself admits or refuses; to wait for one, put it into a [`Policy`](crate::Policy). Several bandwidths are
//! several limiters joined by [`and`](crate::LimiterExt::and), all-or-nothing.
//!
//! All have the same verbs:
//!
//! | verb | what it does |
//! |---|---|
//! | `try_acquire`, `acquire_up_to` | takes so many, or what there is of them |
//! | `force_acquire`, `debt` | takes more than there is; how many are owed |
//! | `available`, `time_until`, `time_until_full` | what there is, and when there will be so many, or all |
//! | `reserve`, `settle` | takes what may be given back, in any order; corrects a charge |
//! | `set_quota`, `reset` | changes it while it runs, by one of four rules ([`Inherit`]); starts anew |
//! | `book` | takes now for work that starts at a known instant (the buckets and the fixed window) |

mod booking;
mod bucket;
mod fixed_window;
mod gate;
mod inherit;
mod leaky_bucket;
mod parse;
mod quota;
mod rate_error;
mod shell;
mod sliding_log;
mod warmup;
mod window;

pub use booking::Booking;
pub(crate) use bucket::plain;
pub use bucket::{BucketTicket, TokenBucket};
pub use fixed_window::FixedWindow;
pub use inherit::Inherit;
pub use leaky_bucket::LeakyBucket;
pub use quota::{Quota, QuotaError};
pub use rate_error::RateError;
pub use shell::RateTicket;
pub use sliding_log::SlidingLog;
pub use warmup::Warmup;
pub use window::{SlidingWindow, WindowError};
