//! Tuples of limiters as one limiter, all or nothing.

use crate::core::ask::{Demand, Role, Waiting};
use crate::core::decision::LegDecision;
use crate::core::legs::Erased;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{Refusal, Wait};
use crate::core::status::Description;
use crate::core::ticket::Ticket;
use crate::sync::unwind::{both, quietly};
use crate::sync::wait_queue::{Place, Watch};
use crate::sync::wake::Deferred;
use std::cell::Cell;
use std::sync::Weak;
use std::thread::panicking;

/// Cancels the admission of a leg when it is dropped: on a refusal of a later leg, and on its panic.
struct Undo<'a, L: Limiter + ?Sized> {
    limiter: &'a L,
    ticket: L::Ticket,
}

impl<L: Limiter + ?Sized> Undo<'_, L> {
    fn keep(self) -> L::Ticket {
        let ticket = self.ticket;
        std::mem::forget(self);
        ticket
    }
}

impl<L: Limiter + ?Sized> Drop for Undo<'_, L> {
    #[inline(always)] // row: bare chain
    fn drop(&mut self) {
        if panicking() {
            quietly(|| self.limiter.cancel(self.ticket));
        } else {
            self.limiter.cancel(self.ticket);
        }
    }
}

/// Looks at all legs. The refusal has the latest wait. A head that is joining joins the queue of the leg of that wait, and no other.
#[cold]
pub(crate) fn look_at_all(legs: &[&dyn Erased], demand: &Demand<'_>) -> Result<(), Refusal> {
    let joins = demand.role() == Role::Joining;
    loop {
        let mut latest: Option<(usize, Wait)> = None;
        let mut refused: Option<Refusal> = None;
        for (index, leg) in legs.iter().enumerate() {
            let Err(refusal) = as_head(demand, |demand| look_at(*leg, demand)) else {
                continue;
            };
            if latest.is_none_or(|(_, wait)| wait < refusal.wait()) {
                latest = Some((index, refusal.wait()));
            }
            refused = Some(refused.map_or(refusal, |first| first.and(refusal)));
        }
        let (Some((index, wait)), Some(refused)) = (latest, refused) else {
            return Ok(());
        };
        if !joins || wait == Wait::Never {
            return Err(refused);
        }
        // Where it has become ready meanwhile, other legs may not be any more: they are looked at again.
        if let Err(own) = legs[index].look(demand) {
            return Err(refused.with_wait(refused.wait().and(own.wait())));
        }
    }
}

/// Looks at one leg. An explanation gets one answer of it at least.
fn look_at(leg: &dyn Erased, demand: &Demand<'_>) -> Result<(), Refusal> {
    let before = demand.answers().map(|answers| answers.borrow().len());
    let looked = leg.look(demand);
    if let (Some(before), Some(answers)) = (before, demand.answers()) {
        if answers.borrow().len() == before {
            let answer = LegDecision::of_leg(leg, demand, looked);
            answers.borrow_mut().push(answer);
        }
    }
    looked
}

/// The same demand of a head that does not join.
fn as_head<R>(demand: &Demand<'_>, look: impl FnOnce(&Demand<'_>) -> R) -> R {
    match demand.queue() {
        Some(waiting) if waiting.role == Role::Joining => {
            let role = Role::Head;
            let waiting = Waiting { role, ..*waiting };
            look(&demand.in_queue(Some(&waiting)))
        }
        _ => look(demand),
    }
}

/// The refusal of the legs behind one that refused, which were not asked. `None` if they admit, so that the first refusal is not copied.
#[cold]
#[inline(never)] // row: bare chain
pub(crate) fn look_at_rest<'a>(rest: impl Iterator<Item = &'a dyn Erased>, demand: &Demand<'_>) -> Option<Refusal> {
    rest.filter_map(|leg| as_head(demand, |demand| leg.look(demand)).err())
        .reduce(Refusal::and)
}

macro_rules! tuples {
    ($(($($leg:ident $ticket:ident $at:tt),+))+) => {$(
        impl<$($leg: Ticket),+> Ticket for ($($leg,)+) {
            const WORDS: usize = 0 $(+ $leg::WORDS)+;
            fn write(&self, words: &mut [u64]) {
                $(let ($ticket, words) = words.split_at_mut($leg::WORDS); self.$at.write($ticket);)+
                let _ = words;
            }
            fn read(words: &[u64]) -> Self {
                $(let ($ticket, words) = words.split_at($leg::WORDS);)+
                let _ = words;
                ($($leg::read($ticket),)+)
            }
        }

        impl<$($leg: Limiter),+> Limiter for ($($leg,)+) {
            type Ticket = ($($leg::Ticket,)+);

            #[inline(always)] // row: bare chain
            fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
                // Dropped after the guards: what they give back is one change.
                let mut deferred = Deferred::new();
                let refused = |by: usize, refusal: Refusal| {
                    let legs = [$(&self.$at as &dyn Erased),+];
                    look_at_rest(legs[by + 1..].iter().copied(), demand).map_or(refusal, |rest| refusal.and(rest))
                };
                $(let $ticket = match self.$at.try_reserve(demand) {
                    Ok(ticket) => Undo { limiter: &self.$at, ticket },
                    Err(refusal) => {
                        // The first leg's refusal gives nothing back.
                        if $at > 0 {
                            deferred.begin();
                        }
                        return Err(refused($at, refusal));
                    }
                };)+
                Ok(($($ticket.keep(),)+))
            }

            fn cancel(&self, ticket: Self::Ticket) {
                let mut deferred = Deferred::new();
                deferred.begin();
                // Guards are dropped in reverse order: a bucket then undoes its newest take, which is exact.
                $(let $ticket = Undo { limiter: &self.$at, ticket: ticket.$at };)+
                let _ = ($(&$ticket,)+);
            }

            #[inline(always)] // row: bare chain
            fn finish(&self, ticket: Self::Ticket, outcome: Outcome) {
                tuples!(@finish self ticket outcome $($at)+);
            }

            fn settle(&self, ticket: &mut Self::Ticket, settlement: &Settlement) -> u32 {
                let mut deferred = Deferred::new();
                deferred.begin();
                let corrected = Cell::new(0);
                tuples!(@settle self ticket settlement corrected $($at)+);
                corrected.get()
            }

            fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
                look_at_all(&[$(&self.$at),+], demand)
            }

            fn leave(&self, place: &Place) {
                tuples!(@leave self place $($at)+);
            }

            fn watch(&self, watcher: &Weak<dyn Watch>) {
                $(self.$at.watch(watcher);)+
            }

            fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
                $(self.$at.describe(visit);)+
            }
        }
    )+};
    // Each leg ends its work, whichever of them panics.
    (@finish $this:ident $ticket:ident $outcome:ident $last:tt) => { $this.$last.finish($ticket.$last, $outcome) };
    (@finish $this:ident $ticket:ident $outcome:ident $first:tt $($rest:tt)+) => {
        both(move || $this.$first.finish($ticket.$first, $outcome), move || tuples!(@finish $this $ticket $outcome $($rest)+))
    };
    (@leave $this:ident $place:ident $last:tt) => { $this.$last.leave($place) };
    (@leave $this:ident $place:ident $first:tt $($rest:tt)+) => {
        both(|| $this.$first.leave($place), || tuples!(@leave $this $place $($rest)+))
    };
    (@settle $this:ident $ticket:ident $settlement:ident $sum:ident $last:tt) => {
        $sum.set($sum.get() + $this.$last.settle(&mut $ticket.$last, $settlement))
    };
    (@settle $this:ident $ticket:ident $settlement:ident $sum:ident $first:tt $($rest:tt)+) => {
        both(
            || $sum.set($sum.get() + $this.$first.settle(&mut $ticket.$first, $settlement)),
            || tuples!(@settle $this $ticket $settlement $sum $($rest)+),
        )
    };
}

tuples! {
    (A a 0, B b 1)
    (A a 0, B b 1, C c 2)
    (A a 0, B b 1, C c 2, D d 3)
    (A a 0, B b 1, C c 2, D d 3, E e 4)
    (A a 0, B b 1, C c 2, D d 3, E e 4, F f 5)
    (A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6)
    (A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7)
}
