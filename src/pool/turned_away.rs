//! The slow path of a submission: the queue is full.

use super::engine::waits::is_inside;
use super::error::Turned;
use super::face::Pool;
use super::overflow::{Crowded, Verdict};
use super::wishes::Submit;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The time for which a submitter waits for capacity, if the pool's overflow makes it wait.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    None,
    For(Duration),
    Endless,
}

impl Submit<'_, Pool<'_>> {
    /// Decides what happens to a task that found the queue full, and waits if need be.
    #[cold]
    pub(super) fn let_in(&self, turned: Turned, patience: Patience) -> Result<Verdict, Turned> {
        let (core, weight) = (self.core(), self.spec.weight);
        // Workers may owe capacity.
        let _pressing = core.press();
        let patience = match (self.judge(turned)?, patience) {
            (Verdict::Wait, Patience::None) => return Err(Turned::Full),
            (Verdict::Wait, Patience::For(patience)) => Some(patience),
            (Verdict::Wait, Patience::Endless) => None,
            (verdict, _) => return Ok(verdict),
        };
        if is_inside(&**core) {
            core.room.overdraw(weight);
        } else {
            core.room.take_blocking(weight, patience)?;
        }
        Ok(Verdict::In)
    }

    /// Decides like [`let_in`](Self::let_in), and waits without blocking the thread.
    pub(super) async fn let_in_async(self, turned: Turned) -> Result<Verdict, Turned> {
        let core = self.core();
        let _pressing = core.press();
        match self.judge(turned)? {
            Verdict::Wait => {}
            verdict => return Ok(verdict),
        }
        let mut room = pin!(core.room.take(self.spec.weight));
        poll_fn(|cx| match room.as_mut().poll(cx) {
            // Checked at each poll: a caller can move the future into a task.
            Poll::Pending if is_inside(&**core) => {
                core.room.overdraw(self.spec.weight);
                Poll::Ready(Ok(Verdict::In))
            }
            taken => taken.map_ok(|()| Verdict::In),
        })
        .await
    }

    fn judge(&self, turned: Turned) -> Result<Verdict, Turned> {
        // Cancelled tasks free their capacity first.
        self.core().sweep();
        self.core().judge(self.spec.weight, turned)
    }
}
