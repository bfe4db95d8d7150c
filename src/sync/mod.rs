//! The concurrent parts that limiters share: the queue of waiters, and guards for steps that must be made although another panics.
//!
//! | name | purpose |
//! |---|---|
//! | [`WaitQueue`], [`Place`] | the waiters at a limiter of your own, in turn with those of all others |
//! | [`Watch`], [`Watchers`] | tell policies that a limit, a quota or a condition has changed |
//! | [`both`], [`Finally`] | a limiter around another one makes its own step also when the one inside panics |
//!
//! # Which waiters go first
//!
//! The head of a policy draws an age, from one counter for the whole process, when it first joins a queue. A head that leaves, or whose
//! deadline comes, hands its age on to the next. An admission ends it. Each queue is ordered by age, so of two heads the same one is
//! older in all queues. A caller of a semaphore stands behind all heads that have their age when it joins, and before all others.
//!
//! A head joins a queue only while it is ready in all queues that it has joined so far. It then keeps its older places if the new
//! wait is no longer than the one that those had cost, or after it has left places four times. Otherwise it leaves them, so that
//! others may take what it cannot use yet. A place that is kept while the head waits for a hand-over is given up after 100 ms at
//! least, and after twice the time since the age was drawn: what is to be handed over may depend on the place. Such a leave is not one
//! of the four.
//!
//! # Fairness
//!
//! The oldest head leaves its places at most four times, and is the first in each queue that it joins. So a policy is served after
//! at most as many admissions of oldest heads as there were older waiters when its head drew its age. **Starvation**: this bound counts
//! admissions, not time. A holder that never gives a permit back stops the heads that wait for it.

mod callers;
pub(crate) mod park;
#[cfg(all(feature = "pool", feature = "tokio"))]
pub(crate) mod runtime;
pub(crate) mod shim;
pub(crate) mod unwind;
pub(crate) mod wait_queue;
pub(crate) mod wake;

pub use unwind::{Finally, both};
pub use wait_queue::{Place, WaitQueue, Watch, Watchers};
