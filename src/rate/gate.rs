//! A word beside the lock, so that the usual admission of one unit needs no lock.
//!
//! As long as the whole state of a meter is [one instant](crate::algo::lone), from which on nothing counts that was taken, the
//! word holds that instant. To take one unit then is one compare-exchange, from that instant to the one until which the unit
//! taken now counts; to refuse one, where no other fits beside it, is a look; and to give the unit back is an exchange too.
//!
//! | the word | what may be done to it |
//! |---|---|
//! | an instant | at that or later: take one unit, which moves it on. By whom it names: give back |
//! | a free bit, and an instant | take one unit, at that instant or later |
//! | [`CLOSED`] | nothing, but by who holds the lock |
//!
//! Whoever takes the lock closes the word and brings the state up to what it said; who gives the lock back opens it again,
//! if the state can be said by a word then. So under the lock the state is all there is.
//!
//! A refusal through the word leaves no trace, not even of its instant: a later admission by an earlier reading counts from
//! the latest instant at which anything else was done. So it is with a look beside somebody who gives back.
//!
//! An instant names one taking, and goes with one set of times: once the word was opened by other times, or everything was
//! cleared, it holds later ones than all before. So a compare-exchange that finds what was read has read the times that belong
//! to it, and gives back nobody else's unit.

use crate::algo::lone::{CLOSED, busy_until, free_since, may_be_word, since_of};
use crate::algo::meter::Meter;
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::sync::shim::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

/// A meter behind a lock, and the word.
pub(super) struct Gate<M> {
    word: AtomicU64,
    lasts: AtomicU64,
    rest: AtomicU64,
    /// The latest instant that was seen when the word was opened.
    seen: AtomicU64,
    meter: Mutex<M>,
}

/// What became of an attempt to take one unit.
pub(super) enum Attempt {
    /// Taken: it counts until then.
    Until(u64),
    /// There is no room before.
    Not(u64),
    /// Go by the lock.
    ByLock,
}

/// Who holds the lock. The word is closed meanwhile.
pub(super) struct Held<'a, M: Meter> {
    gate: &'a Gate<M>,
    meter: MutexGuard<'a, M>,
}

impl<M: Meter> Gate<M> {
    pub(super) fn new(meter: M) -> Self {
        Self {
            word: AtomicU64::new(CLOSED),
            lasts: AtomicU64::new(0),
            rest: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            meter: Mutex::new(meter),
        }
    }

    /// Takes one unit at `now` through the word, or finds that none fits.
    #[inline(always)]
    pub(super) fn take_one(&self, now: u64) -> Attempt {
        // Acquire: whoever sees what was opened sees the times that belong to it, or later ones. Pairs with `Held::drop`, also
        // through the exchanges of others.
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let mut from = now;
            if now < word {
                let Some(since) = since_of(word) else {
                    return self.refuse_one(now, word);
                };
                // Closed is the end of time, and goes no further.
                from = now.max(since);
            }
            // Acquire: whoever sees times of a later opening finds that the word has changed. Pairs with `Held::drop`.
            let until = from.saturating_add(self.lasts.load(Ordering::Acquire));
            if !may_be_word(until) {
                return Attempt::ByLock;
            }
            // Relaxed when it succeeds: nothing but the word is handed on. Acquire when it fails: as the load above.
            let exchanged = self
                .word
                .compare_exchange(word, until, Ordering::Relaxed, Ordering::Acquire);
            match exchanged {
                Ok(_) => return Attempt::Until(until),
                Err(seen) => word = seen,
            }
        }
    }

    /// The rest may be of a later opening than the word. That began with another taking, beside which none would have fitted
    /// at `now` either.
    #[inline(always)]
    fn refuse_one(&self, now: u64, word: u64) -> Attempt {
        // Acquire: as the times in `take_one`.
        let busy_until = busy_until(word, self.rest.load(Ordering::Acquire));
        if now < busy_until {
            Attempt::Not(busy_until)
        } else {
            Attempt::ByLock
        }
    }

    /// Gives back the unit that counts until then, as of `now`; or finds that that is to be done under the lock.
    #[inline(always)]
    pub(super) fn give_back_one(&self, until: u64, now: u64) -> bool {
        // Acquire: as the times in `take_one`.
        let taken = until.saturating_sub(self.lasts.load(Ordering::Acquire));
        let latest = now.max(taken).max(self.seen.load(Ordering::Acquire));
        if seeded!("gate_gives_back_blindly") {
            self.word.store(free_since(latest), Ordering::Relaxed);
            return true;
        }
        // Relaxed, all of them: nothing but the word is handed on.
        may_be_word(latest)
            && self.word.load(Ordering::Relaxed) == until
            && self
                .word
                .compare_exchange(until, free_since(latest), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> Held<'_, M> {
        let mut meter = self.meter.lock();
        // Relaxed: it is opened under the lock that we hold.
        if M::BY_WORD.is_some() && self.word.load(Ordering::Relaxed) != CLOSED {
            // Relaxed: an exchange finds the latest. Who sees times that are stored after it finds it closed; see `Held::drop`.
            let word = if seeded!("gate_closes_blindly") {
                let word = self.word.load(Ordering::Relaxed);
                self.word.store(CLOSED, Ordering::Relaxed);
                word
            } else {
                self.word.swap(CLOSED, Ordering::Relaxed)
            };
            meter.went_by_word(word);
        }
        Held { gate: self, meter }
    }
}

impl<M: Meter> Deref for Held<'_, M> {
    type Target = M;
    #[inline(always)]
    fn deref(&self) -> &M {
        &self.meter
    }
}

impl<M: Meter> DerefMut for Held<'_, M> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut M {
        &mut self.meter
    }
}

impl<M: Meter> Drop for Held<'_, M> {
    /// Opens the word, if it can say what the state is.
    #[inline(always)]
    fn drop(&mut self) {
        let word = self.meter.open();
        if word != CLOSED {
            let times = self.meter.times();
            if seeded!("gate_opens_first") {
                self.gate.word.store(word, Ordering::Release);
            }
            // Release: whoever sees these times sees that the word was closed. Pairs with `take_one`.
            self.gate.lasts.store(times.lasts, Ordering::Release);
            self.gate.rest.store(times.rest, Ordering::Release);
            self.gate.seen.store(self.meter.now(), Ordering::Release);
            // Release: whoever sees this word sees its times. Pairs with `take_one`.
            self.gate.word.store(word, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::drain::Drain;
    use crate::algo::leaky::Leaky;
    use crate::algo::warmup::{Pace, Shape, Warmup};
    use crate::rate::shell::Shell;
    use crate::time::{Instant, ManualClock};
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// What is done, with which number, so many ticks later; or earlier, by a reading that is stale.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Take(u64),
        Cancel(usize),
        Settle(usize, u64),
        Clear,
        Look,
        /// Whatever else there is to do with such a meter.
        Own(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<(i64, Step)>> {
        let step = prop_oneof![
            6 => (0u64..4).prop_map(|n| Step::Take(n.min(2) | u64::from(n == 0))),
            3 => (0usize..4).prop_map(Step::Cancel),
            1 => (0usize..4, 0u64..3).prop_map(|(which, actual)| Step::Settle(which, actual)),
            1 => Just(Step::Clear),
            1 => Just(Step::Look),
            1 => (0u64..8).prop_map(Step::Own),
        ];
        vec((-10i64..40, step), 1..80)
    }

    /// A meter behind a lock with a word, and one that takes no short ways. Where `settles_latest`, only the latest taking is
    /// settled exactly, and it is not promised whether one is the latest again once all after it were given back.
    fn beside<M: Meter>(
        steps: Vec<(i64, Step)>,
        start: u64,
        settles_latest: bool,
        make: impl Fn(u64) -> M,
        own: impl Fn(&mut M, u64) -> Option<(u64, M::Mark)>,
    ) -> Result<(), TestCaseError> {
        let clock = ManualClock::new();
        let (shell, mut bare) = (Shell::new("", &clock, |_| make(start)), make(start));
        let (mut now, mut held, mut made) = (start, Vec::new(), 0);
        for (ticks, step) in steps {
            now = now.saturating_add_signed(ticks);
            let at = Instant::from_ticks(now);
            bare.advance(now);
            match step {
                Step::Take(n) => {
                    let taken = shell.take(n, at);
                    prop_assert_eq!(taken.is_ok(), bare.fits(n));
                    match taken {
                        Ok(mark) => {
                            made += 1;
                            held.push((made, n, mark, bare.take(n)));
                        }
                        // Through the word its instant would stay unseen.
                        Err(_) => drop(shell.at(at)),
                    }
                }
                Step::Cancel(which) if which < held.len() => {
                    let (_, units, mark, twin) = held.remove(which);
                    shell.cancel(units, &mark, at);
                    bare.restore(&twin, units);
                }
                Step::Settle(which, actual) if which < held.len() => {
                    let again = which + 1 == held.len() && held[which].0 != made;
                    let (_, units, mark, twin) = &mut held[which];
                    if *units != actual && !(settles_latest && again) {
                        shell.at(at).correct(mark, *units, actual);
                        bare.correct(twin, *units, actual);
                        *units = actual;
                    }
                }
                Step::Clear => {
                    shell.at(at).clear();
                    bare.clear();
                }
                Step::Own(what) => {
                    let done = own(&mut shell.at(at), what);
                    if let (Some((n, mark)), Some((_, twin))) = (done, own(&mut bare, what)) {
                        made += 1;
                        held.push((made, n, mark, twin));
                    }
                }
                _ => drop(shell.at(at)),
            }
            let says = |meter: &M| (meter.free(), [1, 2, 5].map(|n| meter.ready(n, 0)), meter.fresh_at());
            // Often, one through the word comes right after another.
            if !matches!(step, Step::Take(1)) {
                prop_assert_eq!(says(&shell.at(at)), says(&bare), "after {:?} at {}", step, now);
            }
        }
        Ok(())
    }

    const STARTS: [u64; 4] = [0, 1_000, (1 << 63) - 200, u64::MAX - 500];

    proptest! {
        /// Given takings, what is given back, corrections, bookings, looks and changes at any time, also by stale readings, then
        /// a leaky bucket that has a word says and does the same as one that has none.
        #[test]
        fn a_leaky_bucket_is_the_same_with_a_word(
            steps in steps(), start in 0..STARTS.len(), count in 1u64..4, nanos in 3u64..20, brim in 0u64..4,
            scale in prop_oneof![Just(1u64 << 40), 1u64 << 37..1 << 43],
        ) {
            let drain = |slower| Some(Drain::new(count, nanos + slower, scale));
            beside(steps, STARTS[start], false, |now| Leaky::new(now, drain(0), brim, 9), |leaky, what| {
                match what {
                    0..4 => return leaky.book(what).ok().map(|(mark, _)| (what, mark)),
                    4 => leaky.set_brim(leaky.brim(), 9, leaky.room() - 1),
                    5 | 6 => leaky.set_drain(drain(what)),
                    _ => leaky.set_drain(None),
                }
                None
            })?;
        }

        /// The same of a warm-up.
        #[test]
        fn a_warm_up_is_the_same_with_a_word(
            steps in steps(), start in 0..STARTS.len(), nanos in 1u64..12, period in 1u64..60, cold in 1u32..5, burst in 0u64..4,
        ) {
            let pace = |slower: u64| {
                let interval = u128::from(nanos + slower) << 32;
                Pace::Shaped(Shape::new((1, nanos + slower), period, cold, interval, period).expect("a shape"))
            };
            beside(steps, STARTS[start], true, |now| Warmup::new(now, pace(0), burst), |warmup, what| {
                match what {
                    0 => warmup.set_pace(Pace::Stopped, 0, 0),
                    1 => warmup.set_pace(Pace::Unlimited, 0, 0),
                    _ => warmup.set_pace(pace(what / 4), burst, warmup.stored().0),
                }
                None
            })?;
        }
    }
}
