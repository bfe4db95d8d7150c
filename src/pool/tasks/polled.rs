//! Which tasks are being polled on this thread.

use super::turn::{OwnTurn, Turn};
use crate::pool::kin::Kin;
use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Context, Poll};

struct Polled {
    pool: Kin,
    /// It runs under a permit of the policy of its pool.
    admitted: bool,
    /// Made when somebody asks for it.
    turn: Option<OwnTurn>,
}

crate::sync::shim::thread_local! {
    /// The tasks that are being polled on this thread, innermost last.
    #[allow(clippy::missing_const_for_thread_local)] // The models' macro knows no `const`.
    static POLLED: RefCell<Vec<Polled>> = RefCell::new(Vec::new());
}

/// The turn of the innermost task of `pool` that is being polled on this thread.
pub(super) fn turn_of(pool: Kin) -> Option<Arc<Turn>> {
    let look = |polled: &RefCell<Vec<Polled>>| {
        let mut polled = polled.borrow_mut();
        let innermost = polled.iter_mut().rev().find(|task| task.pool == pool);
        innermost.map(|task| task.turn.get_or_insert_default().share())
    };
    POLLED.try_with(look).ok().flatten()
}

/// True in a task of this pool.
pub(super) fn is_inside(pool: Kin) -> bool {
    let look = |polled: &RefCell<Vec<Polled>>| polled.borrow().iter().any(|task| task.pool == pool);
    POLLED.try_with(look).unwrap_or(false)
}

/// True where a task is being polled on this thread that runs under a permit of the policy of `pool`.
pub(super) fn is_admitted(pool: Kin) -> bool {
    let look = |polled: &RefCell<Vec<Polled>>| polled.borrow().iter().any(|task| task.admitted && task.pool == pool);
    POLLED.try_with(look).unwrap_or(false)
}

/// Polls a task of `pool`, whose turn is this, and then what it runs in passing. `poll` does not panic.
pub(super) fn inside<T, E>(
    pool: Kin,
    admitted: bool,
    turn: &mut Option<OwnTurn>,
    cx: &mut Context<'_>,
    poll: impl FnOnce(&mut Context<'_>) -> Result<Poll<T>, E>,
) -> Result<Poll<T>, E> {
    let mine = turn.take();
    let _ = POLLED.try_with(|polled| {
        polled.borrow_mut().push(Polled {
            pool,
            admitted,
            turn: mine,
        });
    });
    let polled = poll(cx);
    if let Ok(Poll::Pending) = &polled {
        let look =
            |polled: &RefCell<Vec<Polled>>| polled.borrow().last().and_then(|me| Some(me.turn.as_ref()?.share()));
        if let Some(turn) = POLLED.try_with(look).ok().flatten() {
            turn.end_of_poll(cx.waker());
        }
    }
    let me = POLLED.try_with(|polled| polled.borrow_mut().pop());
    *turn = me.ok().flatten().and_then(|me| me.turn);
    polled
}
