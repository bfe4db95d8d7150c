//! What a step changes in the folder, and which slots its wishes get.

use super::{Life, Pending, TRIES, View};
use crate::remote::backend::{Step, Wish};
use std::collections::BTreeSet;

/// What is to be done with `at/limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Bound {
    /// It does not matter.
    Any,
    /// It must be as it was by this write.
    Same(u64),
    /// It is to be this, if it was last written so.
    Set(u64, u64),
}

/// What is to be written, all or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Change {
    /// Our own, and which write it replaces; none when it is to be made.
    pub(in super::super) life: Life,
    pub(in super::super) replaces: Option<u64>,
    pub(in super::super) bound: Bound,
    pub(in super::super) freed: Vec<u64>,
    pub(in super::super) locked: Vec<u64>,
    /// For which wish.
    pub(in super::super) wish: u64,
    /// The limit becomes less: slots above it may be taken that were not when it was read, so that it has to be read again.
    pub(in super::super) lowers: bool,
    /// Others may have been kept back by what has been withdrawn, and would not hear of it.
    pub(in super::super) rings: bool,
}

impl View {
    /// What the step of our session, which Consul calls `id`, changes next; `None` when nothing is left to change. One wish is
    /// granted at a time, since each grant needs a write of its own for its token. If it `queues`, what is new is written down
    /// before anything is taken for it.
    pub(in super::super) fn next(&self, step: &Step, limit: u64, id: &str, queues: bool) -> Option<Change> {
        let replaces = self.life.as_ref().map(|&(_, index)| index);
        let mut life = self.life.as_ref().map(|(life, _)| life.clone()).unwrap_or_default();
        let before = life.clone();
        // Nobody else is there, and nothing is held: it is as if it had never been used.
        let fresh = replaces.is_none() && self.others == 0 && self.taken.is_empty();
        let (mut now, mut index) = self.limit.filter(|_| !fresh).unwrap_or((limit, 0));
        index = self.limit.map_or(index, |(_, index)| index);
        // Whoever comes writes the limit anew, so that nobody who leaves takes it along.
        let mut sets = replaces.is_none();
        let mut freed = Vec::new();
        let (mut revokes, mut rings) = (false, false);
        if step.seq > life.seq {
            life.seq = step.seq;
            // What a step before it says may still come: it does nothing if our key is another one then.
            revokes = step.limit.is_some() || step.withdrawn.iter().any(|&wish| wish > life.asked);
            revokes &= !seeded!("slots_save_a_write");
            if let Some(limit) = step.limit.filter(|&limit| limit != now) {
                (now, sets) = (limit, true);
            }
            let held = self.ours(id).count() as u64;
            let returned = step.returned.clamp(life.returned, life.returned.saturating_add(held));
            freed = self.oldest(id, (returned - life.returned) as usize);
            life.returned = returned;
            let waited = life.pending.len();
            life.pending.retain(|pending| !step.withdrawn.contains(&pending.wish));
            rings = life.pending.len() < waited && !self.others_wait.is_empty();
            for &Wish {
                id: wish,
                need,
                want,
                queue,
            } in &step.wishes
            {
                if wish > life.asked {
                    life.asked = wish;
                    // What exceeds the limit is refused; so is what tries behind those who wait.
                    if need <= now && (queue || life.pending.is_empty()) {
                        let since = if queue { self.version } else { TRIES };
                        life.pending.push(Pending {
                            wish,
                            need,
                            want: want.max(need),
                            since,
                        });
                    }
                }
            }
        }
        let lowers =
            sets && !fresh && self.limit.is_some_and(|(limit, _)| now < limit) && !seeded!("slots_lower_blindly");
        let new = replaces.is_none() || life.pending != before.pending;
        let asks = life.clone();
        let (mut locked, mut wish) = (Vec::new(), 0);
        if !(lowers || queues && new) {
            (locked, wish) = self.grant(&mut life, now, &freed);
        }
        if locked.len() + freed.len() > super::super::MOST as usize && !seeded!("slots_write_all_at_once") {
            // More than there is room for in one write: what is free then is taken by the next.
            (locked, life) = (Vec::new(), asks);
        }
        // Slots above the limit count as well, and who locks one below does not see them: then one grants after the other.
        let drains = self.taken.keys().any(|&number| number >= now);
        let bound = if sets || drains && !locked.is_empty() {
            Bound::Set(now, index)
        } else if locked.is_empty() {
            Bound::Any
        } else {
            Bound::Same(index)
        };
        let said = Life {
            seq: before.seq,
            ..life.clone()
        } != before;
        // What is written for slots or the limit is heard anyway.
        rings &= freed.is_empty() && locked.is_empty() && bound == Bound::Any;
        let change = replaces.is_none() || said || revokes || bound != Bound::Any || !freed.is_empty();
        change.then_some(Change {
            life,
            replaces,
            bound,
            freed,
            locked,
            wish,
            lowers,
            rings,
        })
    }

    /// Takes the first that is pending out, if it fits, and says which slots it gets. What does not wait is forgotten.
    fn grant(&self, life: &mut Life, limit: u64, freed: &[u64]) -> (Vec<u64>, u64) {
        let in_use = (self.taken.len() - freed.len()) as u64;
        let delayed = self
            .delayed
            .range(..limit)
            .filter(|number| !self.taken.contains_key(number));
        let room = limit.saturating_sub(in_use).saturating_sub(delayed.count() as u64);
        let free = (0..limit).filter(|number| !self.delayed.contains(number));
        let is_free = |number: &u64| !self.taken.contains_key(number) || freed.contains(number);
        // Consul lets a session lock again what it has locked.
        let free = free.filter(|number| is_free(number) || seeded!("slots_lock_their_own"));
        // What those before us need is left for them, unless they need more than there is.
        let kept = life.pending.first().map_or(0, |first| self.kept(first, limit));
        let room = room.saturating_sub(kept);
        let fits = life.pending.first().is_some_and(|first| first.need <= room);
        if !fits {
            life.pending.retain(|pending| pending.since != TRIES);
            return (Vec::new(), 0);
        }
        let first = life.pending.remove(0);
        let sessions = self.others + 1;
        // What is wanted beyond the need is for whoever wants it: half an equal share at a time.
        let most = if sessions == 1 {
            room
        } else {
            (limit / (2 * sessions)).max(first.need)
        };
        let units = first.want.min(most).min(room) as usize;
        let free: Vec<u64> = free.collect();
        // Those who begin at one place are in each other's way.
        let begin = if free.is_empty() || seeded!("slots_begin_at_the_first") {
            0
        } else {
            usize::from(life.nonce_seed(&self.name)) % free.len()
        };
        let locked = (0..units).map(|step| free[(begin + step) % free.len()]).collect();
        (locked, first.wish)
    }

    /// What those before this one need. Of equal wishes of one step only one counts: a session takes what is free by one write
    /// for each, and as long as one that is slow, or stopped, had not, room for all of them would lie idle.
    fn kept(&self, pending: &Pending, limit: u64) -> u64 {
        let ahead = self.ahead(pending).filter(|(.., need)| *need <= limit);
        let needs: BTreeSet<_> = ahead.map(|(since, name, _, need)| (since, name, need)).collect();
        needs.iter().map(|(.., need)| **need).sum()
    }

    /// Our slots that were locked first.
    fn oldest(&self, id: &str, many: usize) -> Vec<u64> {
        let mut ours: Vec<_> = self.ours(id).map(|(number, taken)| (taken.index, number)).collect();
        ours.sort_unstable();
        ours.into_iter().take(many).map(|(_, number)| number).collect()
    }
}

impl Life {
    /// Differs from session to session, and from write to write.
    fn nonce_seed(&self, name: &str) -> u16 {
        let bytes = self.nonce.bytes().chain(name.bytes());
        bytes.fold(7, |sum: u16, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
    }
}
