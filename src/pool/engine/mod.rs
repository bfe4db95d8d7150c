//! What pools share, whatever runs their tasks.
//!
//! Two rules take the place of special cases. **A task that waits lends its slot**: `slots` has that as plain numbers. **A task
//! stays in the queue until it starts**: so a cancel, an eviction and the end of the pool concern the queue alone; `queue` is the
//! queue, and `state` has all transitions. `waits` refuses the waits that cannot end.

pub(super) mod core;
pub(super) mod group_limit;
pub(super) mod queue;
pub(super) mod seat;
pub(super) mod slots;
pub(super) mod state;
pub(super) mod waits;
