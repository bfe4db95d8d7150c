//! What a thread has parked, by the number of the lease. Only the thread itself ever touches it.
//!
//! A few numbers lie where a look suffices; which one lies there was used last of those that share the place. The rest, and
//! what is needed to give it back, is in a list. They are two things, so that what is at hand needs no look whether the
//! thread has made it yet, or is ending: it is there from the start, is never dropped, and is empty once the list is gone.

use super::Core;
use crate::limiter::Limiter;
use crate::sync::shim::thread_local;
use crate::ticket::Ticket;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Where what is parked comes back to.
pub(super) trait Origin: Send + Sync {
    /// Gives back `unspent` units of the lease whose ticket has these words. It may run user code.
    fn take_back(&self, words: &[u64], unspent: u64);
}

/// The lease that a thread took last of one limiter.
struct LeaseEntry {
    id: u64,
    origin: Weak<dyn Origin>,
    words: Vec<u64>,
    /// The number of that lease. What was parked before is counted to it as well.
    lease: u64,
    /// How many units that lease took of the limiter.
    taken: u64,
    /// How many of them are parked, while the place at hand is another's.
    aside: u64,
}

const SLOTS: usize = 8;

/// The number of a limiter, how many units of it are parked, and the number of the lease that they are counted to. Zero is no
/// number.
///
/// Cells of their own: to spend is to write one of them, where it was read from.
struct Slot {
    id: Cell<u64>,
    units: Cell<u64>,
    lease: Cell<u64>,
}

impl Slot {
    const fn empty() -> Self {
        Self {
            id: Cell::new(0),
            units: Cell::new(0),
            lease: Cell::new(0),
        }
    }

    fn get(&self) -> (u64, u64) {
        (self.id.get(), self.units.get())
    }

    fn set(&self, id: u64, units: u64, lease: u64) {
        self.id.set(id);
        self.units.set(units);
        self.lease.set(lease);
    }

    /// Spends `n` units of `id`, if as many are here. The number of their lease.
    #[inline(always)]
    fn spend(&self, id: u64, n: u64) -> Option<u64> {
        let units = self.units.get();
        let there = self.id.get() == id && n <= units;
        there.then(|| {
            self.units.set(units - n);
            self.lease.get()
        })
    }
}

/// What is needed to give back what this thread has parked.
#[derive(Default)]
pub(super) struct Parked {
    entries: RefCell<Vec<LeaseEntry>>,
}

#[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
thread_local! {
    static AT_HAND: [Slot; SLOTS] = const { [const { Slot::empty() }; SLOTS] };
}
// The models' macro knows no `const`.
#[cfg(any(tollgate_loom, tollgate_shuttle))]
thread_local! {
    static AT_HAND: [Slot; SLOTS] = [const { Slot::empty() }; SLOTS];
}

thread_local! {
    static PARKED: Parked = Parked::default();
}

/// Looks at the place of `id`. None when there are no places any more.
#[inline(always)]
fn at_slot<R>(id: u64, look: impl FnOnce(&Slot) -> R) -> Option<R> {
    AT_HAND.try_with(|slots| look(&slots[id as usize % SLOTS])).ok()
}

impl Parked {
    /// Brings what `id` has parked to hand, and returns how much that is.
    fn bring(&self, id: u64) -> u64 {
        let (other, units) = at_slot(id, Slot::get).unwrap_or((0, 0));
        if other == id {
            return units;
        }
        let mut entries = self.entries.borrow_mut();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.id == other) {
            entry.aside = units;
        }
        let entry = entries.iter_mut().find(|entry| entry.id == id);
        let (units, lease) = entry.map_or((0, 0), |entry| (std::mem::take(&mut entry.aside), entry.lease));
        Self::set(id, units, lease);
        units
    }

    /// Puts `units` of `id` at hand.
    fn set(id: u64, units: u64, lease: u64) {
        at_slot(id, |slot| slot.set(id, units, lease));
    }

    /// Spends `n` units that this thread has parked, if it has as many at hand. The number of their lease.
    #[inline(always)]
    pub(super) fn spend(id: u64, n: u64) -> Option<u64> {
        at_slot(id, |slot| slot.spend(id, n)).flatten()
    }

    /// How many units this thread has parked.
    pub(super) fn units(id: u64) -> u64 {
        PARKED.try_with(|parked| parked.bring(id)).unwrap_or(0)
    }

    /// Parks what is left of a lease of `taken` units, and of what was parked before, once `spent` units are spent. The number
    /// of the lease; none when this thread is ending, or has spent meanwhile what was parked.
    pub(super) fn park<L: super::Prepaid + 'static>(
        id: u64,
        origin: &Arc<Core<L>>,
        ticket: &<L as Limiter>::Ticket,
        taken: u64,
        spent: u64,
    ) -> Option<u64> {
        // Relaxed: only that no number is given twice matters.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let parked = PARKED.try_with(|parked| {
            let left = (parked.bring(id) + taken).checked_sub(spent)?;
            let lease = NEXT.fetch_add(1, Ordering::Relaxed);
            {
                let mut entries = parked.entries.borrow_mut();
                let at = entries.iter().position(|entry| entry.id == id).unwrap_or_else(|| {
                    // No more than there are limiters that live.
                    entries.retain(|entry| entry.origin.strong_count() > 0);
                    let origin: Weak<Core<L>> = Arc::downgrade(origin);
                    entries.push(LeaseEntry {
                        id,
                        origin,
                        words: vec![0; L::Ticket::WORDS],
                        lease: 0,
                        taken: 0,
                        aside: 0,
                    });
                    entries.len() - 1
                });
                ticket.write(&mut entries[at].words);
                (entries[at].taken, entries[at].lease) = (taken, lease);
            }
            Self::set(id, left, lease);
            Some(lease)
        });
        parked.ok().flatten()
    }

    /// Puts units back that were spent of this lease, as long as it is the one that the thread spends. True when it was.
    pub(super) fn put_back(id: u64, units: u64, lease: u64) -> bool {
        // A thread that is ending cannot keep them.
        let put = PARKED.try_with(|parked| {
            let there = parked.bring(id);
            let same = at_slot(id, |slot| slot.lease.get()) == Some(lease) && lease > 0;
            if same {
                Self::set(id, there.saturating_add(units), lease);
            }
            same
        });
        put.unwrap_or(false)
    }

    /// Gives back what this thread has parked.
    pub(super) fn release(id: u64) {
        let gone = PARKED.try_with(|parked| {
            let unspent = parked.bring(id);
            Self::set(id, 0, 0);
            let mut entries = parked.entries.borrow_mut();
            let at = entries.iter().position(|entry| entry.id == id)?;
            Some((entries.swap_remove(at), unspent))
        });
        if let Ok(Some((entry, unspent))) = gone {
            entry.return_unspent(unspent);
        }
    }
}

impl LeaseEntry {
    /// Gives back what is parked, if there is still somebody to give it to: at most what the last lease took.
    fn return_unspent(&self, unspent: u64) {
        let unspent = match seeded!("lease_gives_back_all") {
            true => self.taken,
            false => unspent.min(self.taken),
        };
        if unspent > 0
            && !seeded!("lease_keeps")
            && let Some(origin) = self.origin.upgrade()
        {
            origin.take_back(&self.words, unspent);
        }
    }
}

/// The thread ends.
impl Drop for Parked {
    fn drop(&mut self) {
        let entries = std::mem::take(self.entries.get_mut());
        for entry in entries {
            // Taken before it goes origin: whatever runs there finds nothing at hand.
            let at_hand = at_slot(entry.id, |slot| {
                let (owner, units) = slot.get();
                (owner == entry.id).then(|| {
                    slot.set(0, 0, 0);
                    units
                })
            });
            entry.return_unspent(at_hand.flatten().unwrap_or(entry.aside));
        }
    }
}
