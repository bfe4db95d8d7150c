//! A word beside the lock, so that the usual admission of one unit needs no lock.
//!
//! As long as the whole state of a meter is [one instant](SingleUnit), from which on nothing counts that was taken, the
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
//!
//! What a state that is one instant remembers: one unit was taken while nothing else counted, and from an instant on nothing
//! counts again. Then the whole state is that instant, and a word beside the lock may hold it (see `rate/gate.rs`). Or nothing
//! counts at all, and the word holds the latest instant that was seen.
//!
//! Between two looks at the state, any number of such takings may have gone through the word. Each of them began when the one
//! before had ceased to count, or was given back: so all but the latest have nothing left to give back, and need no names. The
//! latest is named by its instant. No other taking that may still be given back has the same: one under the lock gets into the
//! word only if it counts longer than all before it.

use super::meter::Meter;
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::sync::shim::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

/// What the word is while it says nothing.
pub(super) const CLOSED: u64 = u64::MAX;

/// The bit of a word that says that nothing counts. The rest is the latest instant that was seen.
const FREE: u64 = 1 << 63;

/// The bit that tells the mark of a taking through the word from the number of one under the lock.
const BY_WORD: u64 = 1 << 63;

/// The mark, or the first word of it, of a taking that moved the word on to `until`.
#[inline(always)]
pub(super) fn mark_of(until: u64) -> u64 {
    until | BY_WORD
}

/// The instant until which a taking through the word counts, by its mark. None of one under the lock.
#[inline(always)]
pub(super) fn until_of(mark: u64) -> Option<u64> {
    (mark & BY_WORD != 0).then_some(mark & !BY_WORD)
}

/// What the word is when nothing counts, and `now` is the latest instant that was seen.
#[inline(always)]
pub(super) fn free_since(now: u64) -> u64 {
    now | FREE
}

/// The latest instant, by a word that says that nothing counts.
#[inline(always)]
pub(super) fn since_of(word: u64) -> Option<u64> {
    (word & FREE != 0).then_some(word & !FREE)
}

/// True when an instant may stand in the word, with or without a bit.
#[inline(always)]
pub(super) fn may_be_word(instant: u64) -> bool {
    instant < CLOSED & !FREE
}

/// How long one unit counts that is taken alone, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// Until nothing of it counts any more.
    pub(super) lasts: u64,
    /// Of that, how long another unit fits beside it, at the end; all of time where one may do so at once.
    pub(super) rest: u64,
}

impl Times {
    /// Never alone.
    pub(super) const NEVER: Self = Self {
        lasts: u64::MAX,
        rest: u64::MAX,
    };
}

/// The instant before which no other unit fits beside one that counts `until` then. The start of time when one does at once.
#[inline(always)]
pub(super) fn busy_until(until: u64, rest: u64) -> u64 {
    until.saturating_sub(rest)
}

/// Whose mark it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known<M> {
    /// This one's, under the lock.
    As(M),
    /// One's of which nothing counts any more.
    Past,
    /// One's from before everything was cleared.
    Cleared,
}

/// `M` is the mark of a taking under the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SingleUnit<M> {
    /// What the state is as a word; [`CLOSED`] when it is more than that.
    word: u64,
    /// The latest instant until which a taking counts, or would have counted, that may have a name.
    latest: u64,
    /// As of when everything was cleared.
    cleared: u64,
    /// The latest taking that went through the word.
    named: (u64, M),
}

impl<M: Copy> SingleUnit<M> {
    /// Nothing has been taken. `mark` is nobody's.
    pub(super) fn new(mark: M) -> Self {
        Self {
            word: CLOSED,
            latest: 0,
            cleared: 0,
            named: (0, mark),
        }
    }

    /// One unit was taken under the lock, with nothing else there, and counts until then. After a reset, or a change to a faster
    /// rate, it may not count longer than those before: so long the word stays closed, and everybody goes by the lock.
    pub(super) fn begin(&mut self, until: u64) {
        let unheard_of = until > self.latest || seeded!("gate_opens_again");
        self.word = CLOSED;
        if unheard_of && may_be_word(until) {
            (self.word, self.latest) = (until, until);
        }
    }

    /// The state is more than a word.
    #[inline]
    pub(super) fn end(&mut self) {
        self.word = CLOSED;
    }

    /// Everything is cleared: what was taken until now is not given back any more.
    pub(super) fn clear(&mut self) {
        self.end();
        self.cleared = self.latest;
    }

    /// True when the word says what it was opened with.
    #[inline]
    pub(super) fn is(&self, word: u64) -> bool {
        self.word == word
    }

    /// The latest taking went through the word. As one under the lock it would have this mark.
    pub(super) fn went(&mut self, until: u64, mark: M) {
        (self.word, self.latest, self.named) = (until, until, (until, mark));
    }

    /// Nothing counts, by the word; whoever went through it, last at `since`, has given back.
    pub(super) fn is_free(&mut self, since: u64, times: Times) {
        self.word = free_since(since);
        self.latest = self.latest.max(since.saturating_add(times.lasts));
    }

    /// What the word may say, if `now` is the latest instant that was seen. [`CLOSED`] also when another unit fits by then
    /// beside one that counts: the word would refuse it by an earlier reading.
    #[inline(always)]
    pub(super) fn open(&mut self, now: u64, times: Times) -> u64 {
        match self.word {
            CLOSED => CLOSED,
            word => self.open_with(word, now, times),
        }
    }

    fn open_with(&mut self, word: u64, now: u64, times: Times) -> u64 {
        let is_free = word <= now || since_of(word).is_some();
        if is_free && !seeded!("gate_forgets_a_look") {
            // Whoever comes by an earlier reading shall count from the latest.
            self.word = if may_be_word(now) { free_since(now) } else { CLOSED };
            return self.word;
        }
        match busy_until(word, times.rest) {
            1.. if now >= busy_until(word, times.rest) => CLOSED,
            _ => word,
        }
    }

    /// Whose mark this is, by its first word; none when it is that of a taking under the lock.
    pub(super) fn find(&self, first: u64) -> Option<Known<M>> {
        let until = until_of(first)?;
        Some(match until {
            _ if until <= self.cleared => Known::Cleared,
            _ if until == self.named.0 => Known::As(self.named.1),
            _ => Known::Past,
        })
    }
}

/// A meter behind a lock, and the word.
pub(super) struct MeterLock<M> {
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
pub(super) struct MeterGuard<'a, M: Meter> {
    lock: &'a MeterLock<M>,
    meter: MutexGuard<'a, M>,
}

impl<M: Meter> MeterLock<M> {
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
        // Acquire: whoever sees what was opened sees the times that belong to it, or later ones. Pairs with `MeterGuard::drop`, also
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
            // Acquire: whoever sees times of a later opening finds that the word has changed. Pairs with `MeterGuard::drop`.
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
    pub(super) fn lock(&self) -> MeterGuard<'_, M> {
        let mut meter = self.meter.lock();
        // Relaxed: it is opened under the lock that we hold.
        if M::BY_WORD.is_some() && self.word.load(Ordering::Relaxed) != CLOSED {
            // Relaxed: an exchange finds the latest. Who sees times that are stored after it finds it closed; see `MeterGuard::drop`.
            let word = if seeded!("gate_closes_blindly") {
                let word = self.word.load(Ordering::Relaxed);
                self.word.store(CLOSED, Ordering::Relaxed);
                word
            } else {
                self.word.swap(CLOSED, Ordering::Relaxed)
            };
            meter.went_by_word(word);
        }
        MeterGuard { lock: self, meter }
    }
}

impl<M: Meter> Deref for MeterGuard<'_, M> {
    type Target = M;
    #[inline(always)]
    fn deref(&self) -> &M {
        &self.meter
    }
}

impl<M: Meter> DerefMut for MeterGuard<'_, M> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut M {
        &mut self.meter
    }
}

impl<M: Meter> Drop for MeterGuard<'_, M> {
    /// Opens the word, if it can say what the state is.
    #[inline(always)]
    fn drop(&mut self) {
        let word = self.meter.open();
        if word != CLOSED {
            let times = self.meter.times();
            if seeded!("gate_opens_first") {
                self.lock.word.store(word, Ordering::Release);
            }
            // Release: whoever sees these times sees that the word was closed. Pairs with `take_one`.
            self.lock.lasts.store(times.lasts, Ordering::Release);
            self.lock.rest.store(times.rest, Ordering::Release);
            self.lock.seen.store(self.meter.now(), Ordering::Release);
            // Release: whoever sees this word sees its times. Pairs with `take_one`.
            self.lock.word.store(word, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::drain::Drain;
    use crate::rate::leaky_bucket::LeakyMeter;
    use crate::rate::meter_limiter::MeterLimiter;
    use crate::rate::warmup::{Pace, Shape, WarmupMeter};
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
        let (limiter, mut bare) = (MeterLimiter::new("", &clock, |_| make(start)), make(start));
        let (mut now, mut held, mut made) = (start, Vec::new(), 0);
        for (ticks, step) in steps {
            now = now.saturating_add_signed(ticks);
            let at = Instant::from_ticks(now);
            bare.advance(now);
            match step {
                Step::Take(n) => {
                    let taken = limiter.take(n, at);
                    prop_assert_eq!(taken.is_ok(), bare.fits(n));
                    match taken {
                        Ok(mark) => {
                            made += 1;
                            held.push((made, n, mark, bare.take(n)));
                        }
                        // Through the word its instant would stay unseen.
                        Err(_) => drop(limiter.at(at)),
                    }
                }
                Step::Cancel(which) if which < held.len() => {
                    let (_, units, mark, twin) = held.remove(which);
                    limiter.cancel(units, &mark, at);
                    bare.restore(&twin, units);
                }
                Step::Settle(which, actual) if which < held.len() => {
                    let again = which + 1 == held.len() && held[which].0 != made;
                    let (_, units, mark, twin) = &mut held[which];
                    if *units != actual && !(settles_latest && again) {
                        limiter.at(at).correct(mark, *units, actual);
                        bare.correct(twin, *units, actual);
                        *units = actual;
                    }
                }
                Step::Clear => {
                    limiter.at(at).clear();
                    bare.clear();
                }
                Step::Own(what) => {
                    let done = own(&mut limiter.at(at), what);
                    if let (Some((n, mark)), Some((_, twin))) = (done, own(&mut bare, what)) {
                        made += 1;
                        held.push((made, n, mark, twin));
                    }
                }
                _ => drop(limiter.at(at)),
            }
            let says = |meter: &M| (meter.free(), [1, 2, 5].map(|n| meter.ready(n, 0)), meter.fresh_at());
            // Often, one through the word comes right after another.
            if !matches!(step, Step::Take(1)) {
                prop_assert_eq!(says(&limiter.at(at)), says(&bare), "after {:?} at {}", step, now);
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
            beside(steps, STARTS[start], false, |now| LeakyMeter::new(now, drain(0), brim, 9), |leaky, what| {
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
            beside(steps, STARTS[start], true, |now| WarmupMeter::new(now, pace(0), burst), |warmup, what| {
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
