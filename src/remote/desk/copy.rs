//! A limiter in a process that was forked from the one which made it.
//!
//! The child has the session and the connections of its parent in memory: a permit that it took would exist twice, under one token.
//! So a copy admits nothing, and sends nothing to the store.

use super::{Desk, End};
use crate::core::refusal::Reason;
use crate::time::Instant;
use std::time::Duration;

/// A look is a system call: units at hand are taken without one for this long.
const LOOK: Duration = Duration::from_millis(1);

impl Desk {
    /// Whether this is the copy in a forked process, looked at anew after [`LOOK`].
    #[inline]
    pub(super) fn is_copy(&mut self, now: Instant) -> bool {
        if now >= self.known_until {
            self.look_at_process(now);
        }
        self.is_copy
    }

    /// Looks whether this is the copy in a forked process. A copy loses all that it holds, and closes, without a step.
    pub(in crate::remote) fn look_at_process(&mut self, now: Instant) {
        self.known_until = self.clock.after(now, LOOK);
        if self.is_copy || std::process::id() == self.process || seeded!("remote_goes_on_in_a_copy") {
            return;
        }
        (self.is_copy, self.closed) = (true, true);
        self.live = None;
        self.farewells.clear();
        self.lose(now);
        self.dismiss_all(End::Refused(Reason::Closed));
    }
}

#[cfg(test)]
mod tests {
    use crate::ManualClock;
    use crate::core::refusal::Reason;
    use crate::remote::{Blocks, Key, Memory, Remote};
    use std::sync::Arc;

    #[test]
    fn a_limiter_in_a_forked_process_is_closed_and_says_nothing_to_the_store() {
        let clock = ManualClock::new();
        let store = Arc::new(Memory::new(&clock));
        let build = |blocks| {
            let remote = Remote::permits(Key::new("shared").unwrap(), 8)
                .clock(&clock)
                .blocks(blocks);
            remote.in_place(Arc::clone(&store)).unwrap()
        };
        let (copy, other) = (build(Blocks::up_to(4).keep(4)), build(Blocks::up_to(4)));
        let held = clock.run(copy.acquire(1)).unwrap();
        clock.advance(super::LOOK);
        // As in a child, whose process has another number.
        copy.shared.with(|desk| desk.process ^= 1);
        let steps = copy.stats().steps;
        assert_eq!(
            copy.try_acquire(1).unwrap_err().reason(),
            Reason::Closed,
            "three are at hand"
        );
        assert!(held.is_lost());
        drop(held);
        assert_eq!(clock.run(copy.acquire(1)).unwrap_err().reason(), Reason::Closed);
        clock.run(copy.close());
        assert_eq!(copy.stats().steps, steps);
        // The parent has what it had.
        assert!(clock.run(other.acquire_now(5)).is_err());
        drop(clock.run(other.acquire_now(4)).unwrap());
    }
}
