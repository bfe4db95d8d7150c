//! What a breaker's word says, and what a ticket remembers of it.
//!
//! | bits | breaker's word | ticket |
//! |---|---|---|
//! | 63..32 | period | the same |
//! | 31..4 | 0 | calls, as many as fit |
//! | 3 | 1 | 1 |
//! | 2..0 | state | the same |
//!
//! Neither is ever zero, so that an absent ticket needs no word of its own.

use crate::algo::breaker::State;
use std::num::NonZeroU64;

const STATE: u64 = 0b111;
const PRESENT: u64 = 1 << 3;
const UNITS_SHIFT: u32 = 4;
const PERIOD_SHIFT: u32 = 32;
const MAX_UNITS: u64 = (1 << (PERIOD_SHIFT - UNITS_SHIFT)) - 1;
const UNITS: u64 = MAX_UNITS << UNITS_SHIFT;

/// The state of a breaker and its period, of which 32 bits are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
    #[inline]
    pub(super) fn new(state: State, period: u64) -> Self {
        Self(period << PERIOD_SHIFT | PRESENT | state as u64)
    }

    #[inline]
    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline]
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    pub(super) fn state(self) -> State {
        State::from_bits(self.0 & STATE)
    }

    #[inline]
    pub(super) fn period(self) -> u64 {
        self.0 >> PERIOD_SHIFT
    }

    /// `units` calls are admitted. More than fit are as many as fit: no window tells them apart.
    #[inline]
    pub(super) fn admit(self, units: u64) -> Admitted {
        let bits = self.0 | units.min(MAX_UNITS) << UNITS_SHIFT;
        Admitted(NonZeroU64::new(bits).unwrap_or(NonZeroU64::MIN))
    }
}

/// A word, and how many calls were admitted when it was current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admitted(NonZeroU64);

impl Admitted {
    #[inline]
    pub(super) fn word(self) -> Word {
        Word(self.0.get() & !UNITS)
    }

    #[inline]
    pub(super) fn units(self) -> u64 {
        (self.0.get() & UNITS) >> UNITS_SHIFT
    }

    #[inline]
    pub(super) fn bits(self) -> u64 {
        self.0.get()
    }

    /// What [`bits`](Self::bits) gave.
    #[inline]
    pub(super) fn from_bits(bits: u64) -> Self {
        Self(NonZeroU64::new(bits).unwrap_or(NonZeroU64::MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_ticket_remembers_is_read_back() {
        for (state, period) in [
            (State::Closed, 0),
            (State::HalfOpen, 7),
            (State::ForcedOpen, u32::MAX.into()),
        ] {
            let word = Word::new(state, period);
            assert_eq!((word.state(), word.period()), (state, period));
            for (units, kept) in [(0, 0), (1, 1), (MAX_UNITS, MAX_UNITS), (u64::MAX, MAX_UNITS)] {
                let admitted = word.admit(units);
                assert_eq!((admitted.word(), admitted.units()), (word, kept));
                assert_eq!(Admitted::from_bits(admitted.bits()), admitted);
                assert_eq!(Word::from_bits(word.bits()), word);
            }
        }
    }
}
