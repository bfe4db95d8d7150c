//! Rates: how many may start per time.
//!
//! | type | what it is | prefer it when |
//! |---|---|---|
//! | [`TokenBucket`] | a rate with a burst, exact, one atomic word | nearly always |
//! | [`SlidingWindow`] | at most so many in *any* window of a length | an upstream counts so, or bursts must not add up |
//!
//! A rate by itself admits or refuses; to wait for one, put it into a [`Policy`](crate::Policy).

mod bucket;
mod parse;
mod quota;
mod window;

pub(crate) use bucket::plain;
pub use bucket::{BucketTicket, Inherit, TokenBucket};
pub use quota::{Quota, QuotaError};
pub use window::{SlidingWindow, WindowError, WindowTicket};
