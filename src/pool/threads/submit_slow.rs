//! The slow path of a submission: the queue is full.

use super::pool::Pool;
use crate::pool::engine::waits::is_inside;
use crate::pool::error::RejectReason;
use crate::pool::overflow::{Crowded, Verdict};
use crate::pool::task_options::SubmitBuilder;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The time for which a submitter waits for capacity, if the pool's overflow makes it wait.
#[derive(Clone, Copy)]
pub(in crate::pool) enum Patience {
    None,
    For(Duration),
    Endless,
}

impl SubmitBuilder<'_, Pool<'_>> {
    /// Decides what happens to a task that found the queue full, and waits if need be.
    #[cold]
    pub(in crate::pool) fn let_in(&self, turned: RejectReason, patience: Patience) -> Result<Verdict, RejectReason> {
        let (core, weight) = (self.core(), self.options.weight);
        // Workers may owe capacity.
        let _pressing = core.press();
        let patience = match (self.judge(turned)?, patience) {
            (Verdict::Wait, Patience::None) => return Err(RejectReason::Full),
            (Verdict::Wait, Patience::For(patience)) => Some(patience),
            (Verdict::Wait, Patience::Endless) => None,
            (verdict, _) => return Ok(verdict),
        };
        if is_inside(&**core) {
            core.capacity.overdraw(weight);
        } else {
            core.capacity.take_blocking(weight, patience)?;
        }
        Ok(Verdict::In)
    }

    /// Decides like [`let_in`](Self::let_in), and waits without blocking the thread.
    pub(in crate::pool) async fn let_in_async(self, turned: RejectReason) -> Result<Verdict, RejectReason> {
        let core = self.core();
        let _pressing = core.press();
        match self.judge(turned)? {
            Verdict::Wait => {}
            verdict => return Ok(verdict),
        }
        let mut capacity = pin!(core.capacity.take(self.options.weight));
        poll_fn(|cx| match capacity.as_mut().poll(cx) {
            // Checked at each poll: a caller can move the future into a task.
            Poll::Pending if is_inside(&**core) => {
                core.capacity.overdraw(self.options.weight);
                Poll::Ready(Ok(Verdict::In))
            }
            taken => taken.map_ok(|()| Verdict::In),
        })
        .await
    }

    fn judge(&self, turned: RejectReason) -> Result<Verdict, RejectReason> {
        // Cancelled tasks free their capacity first.
        self.core().sweep();
        self.core().judge(self.options.weight, turned)
    }
}
