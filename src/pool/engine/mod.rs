//! The engine of all pools, of threads and of async tasks.
//!
//! Two rules replace special cases. **A waiting task lends its slot**: `slots` counts the loans. **A task stays in the
//! queue until it starts**: so a cancel, an eviction and the end of the pool concern the queue alone. `queue` is the
//! queue, and `state` has all transitions. `waits` refuses the waits that cannot end.

pub(super) mod entry;
pub(super) mod group_limit;
pub(super) mod lane;
pub(super) mod queue;
pub(super) mod scheduler;
pub(super) mod seat;
pub(super) mod slots;
pub(super) mod state;
pub(super) mod waits;
