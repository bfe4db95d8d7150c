//! Fan-out: runs an async function on the items of an iterator or a stream, at most `limit` at once, on tasks of the runtime.
//!
//! | you want to | use |
//! |---|---|
//! | every outcome, as they end | [`fan_out`]`(items, 64).map(f)` |
//! | in the order of the items | [`FanOut::ordered`] |
//! | the first error to end it all | [`FanOut::try_map`] |
//! | to share the limit, or change it while it runs | an `Arc<`[`Semaphore`](crate::Semaphore)`>` for the limit |
//! | a rate, or any policy, in front of each item | [`FanOut::admit_by`] |
//!
//! # Compared to `buffer_unordered`
//! The futures run on tasks of their own: in parallel, and whether the stream of results is polled or not. A consumer
//! that waits for something that one of the futures holds does not deadlock (futures-rs#2387). The price is that items,
//! futures and results are `Send + 'static`.
//!
//! # Compared to a task per item
//! Runners, at most as many as the limit, live as long as the fan-out and take one item after the other. There is no
//! task, no join handle and no permit to be made per item, and no item is taken from the source before there is room
//! for its result.

mod builder;
mod progress;
mod results;
mod runner;
mod shared;
mod state;

pub use builder::{FanOut, Limit, fan_out, fan_out_stream};
pub use progress::Progress;
pub use results::{Results, TryResults};
