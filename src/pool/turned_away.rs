//! A submission that finds no room.

use super::engine::waits::is_inside;
use super::error::Turned;
use super::face::Pool;
use super::overflow::{Crowded, Verdict};
use super::wishes::Submit;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// How long a submitter waits for room, where the pool's overflow says that it waits.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    None,
    For(Duration),
    Endless,
}

impl Submit<'_, Pool<'_>> {
    /// What becomes of a task that has been turned away.
    #[cold]
    pub(super) fn let_in(&self, turned: Turned, patience: Patience) -> Result<Verdict, Turned> {
        let (core, weight) = (self.core(), self.spec.weight);
        // Workers may owe places.
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

    /// The same without blocking the thread.
    pub(super) async fn let_in_async(self, turned: Turned) -> Result<Verdict, Turned> {
        let core = self.core();
        let _pressing = core.press();
        match self.judge(turned)? {
            Verdict::Wait => {}
            verdict => return Ok(verdict),
        }
        let mut room = pin!(core.room.take(self.spec.weight));
        poll_fn(|cx| match room.as_mut().poll(cx) {
            // Asked at each poll: a future can be moved into a task.
            Poll::Pending if is_inside(&**core) => {
                core.room.overdraw(self.spec.weight);
                Poll::Ready(Ok(Verdict::In))
            }
            taken => taken.map_ok(|()| Verdict::In),
        })
        .await
    }

    fn judge(&self, turned: Turned) -> Result<Verdict, Turned> {
        // What has been cancelled takes no room from now on.
        self.core().sweep();
        self.core().judge(self.spec.weight, turned)
    }
}
