//! Runs an async function on the items of an iterator or a stream, on at most `limit` tasks concurrently.
//!
//! | you want to | use |
//! |---|---|
//! | get every outcome, as the items end | [`fan_out`]`(items, 64).map(f)` |
//! | get the results in the order of the items | [`FanOut::ordered`] |
//! | stop at the first error | [`FanOut::try_map`] |
//! | share the limit, or change it during the run | an `Arc<`[`Semaphore`](crate::Semaphore)`>` for the limit |
//! | put a rate, or any policy, in front of each item | [`FanOut::admit_by`] |
//! | choose the policy and the cost by the item: a rate for each host | [`FanOut::admit_each`] |
//!
//! # Compared to `buffer_unordered`
//! The futures run on their own tasks: in parallel, whether or not the results are polled. A consumer that waits for a
//! resource which one of the futures holds does not deadlock (futures-rs#2387). The price: items, futures and results are
//! `Send + 'static`.
//!
//! # Compared to a task per item
//! At most `limit` runners live as long as the fan-out, and each runs one item after the other. An item needs no task, join
//! handle or permit of its own. No item is taken from the source before the buffer has room for its result.

mod builder;
mod delivery;
mod each;
mod results;
mod shared;
mod state;

pub use builder::{FanOut, Limit, fan_out, fan_out_stream};
pub use results::{Progress, Results, TryResults};
