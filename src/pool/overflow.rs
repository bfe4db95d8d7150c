//! What becomes of a task that finds no room.

use super::error::Turned;
use super::room::Room;

/// What happens to a task that is submitted while the queue is full.
///
/// A submission that never waits, `try_submit`, refuses where it would.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Overflow {
    /// The submitter waits for room. A task of the pool itself does not wait, since its slot may be the one that would make
    /// room: what it submits is queued beyond the bound.
    ///
    /// **Starvation**: submitters from outside find no room until the excess has started or ended, so a pool whose tasks go on
    /// submitting may keep them waiting. **Memory** is not bounded then. **Deadlock**: a task that waits for room in another
    /// pool, whose tasks wait for its slot, waits for ever; so does one that waits for a thread or a spawned task that submits.
    #[default]
    Block,
    /// The task is handed back.
    Reject,
    /// The task that has waited longest, among those of the lowest priority, is thrown out; one that waits for the
    /// [policy](super::Builder::admit_by) is in the queue.
    DropOldest,
    /// The new task is thrown out.
    DropNewest,
}

/// What becomes of a task that is submitted.
pub(super) enum Verdict {
    /// There is room for it, which is taken.
    In,
    /// It is thrown out.
    Out,
    /// The submitter waits for room.
    Wait,
}

/// A pool, as those see it who have found no room.
pub(super) trait Crowded {
    type Entry;
    fn room(&self) -> &Room;
    fn overflow(&self) -> Overflow;
    /// Throws the oldest task of the lowest priority out, and gives its room back.
    fn evict(&self) -> Option<Self::Entry>;
    /// Tells the owner of a task that it was thrown out, unless it has started elsewhere, or ended.
    fn discard(&self, entry: Self::Entry);

    /// What becomes of a task that has just been `turned` away, and is so heavy.
    #[cold]
    fn judge(&self, weight: u32, turned: Turned) -> Result<Verdict, Turned> {
        self.room().fits(weight)?;
        if turned == Turned::Closed {
            return Err(turned);
        }
        // Places that were owed have come back.
        match self.room().try_take(weight) {
            Err(Turned::Full) => {}
            taken => return taken.map(|()| Verdict::In),
        }
        match self.overflow() {
            Overflow::Block => Ok(Verdict::Wait),
            Overflow::Reject => Err(Turned::Full),
            Overflow::DropOldest => self.make_room(weight).map(|()| Verdict::In),
            Overflow::DropNewest => Ok(Verdict::Out),
        }
    }

    /// Throws tasks out until there is room.
    fn make_room(&self, weight: u32) -> Result<(), Turned> {
        loop {
            match self.evict() {
                Some(entry) => self.discard(entry),
                // All room is with submitters that have not queued their tasks yet.
                None => std::thread::yield_now(),
            }
            match self.room().try_take(weight) {
                Err(Turned::Full) => {}
                taken => return taken,
            }
        }
    }
}
