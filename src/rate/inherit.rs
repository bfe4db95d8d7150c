//! The rules of a change of quota: four rules, in one formula for every limiter behind a lock.

/// The part of a running limiter's state that survives a change of its quota.
///
/// No sequence of changes mints tokens, except by [`Reset`](Self::Reset) and an unlimited quota, which both start anew.
/// A change adds at most the amount by which the limit exceeds the largest one so far, plus the amount that earlier
/// changes have taken away. From 100 to 50 and back to 100, an empty bucket stays empty by every other rule.
///
/// ```
/// # use tollgate::{Inherit, ManualClock, Quota, TokenBucket};
/// let clock = ManualClock::new();
/// let bucket = TokenBucket::new(Quota::per_second(100)).on(&clock);
/// assert!(bucket.try_acquire(70).is_ok());
/// for quota in [50, 100, 50, 100].map(Quota::per_second) {
///     bucket.set_quota(quota, Inherit::Additive);
/// }
/// assert_eq!(bucket.available(), 30);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Inherit {
    /// The tokens that are there, up to the new burst.
    #[default]
    AsIs,
    /// The same share of the burst.
    Proportional,
    /// The tokens that are there, plus the growth of the burst, or less its shrinkage; not below zero. For a window:
    /// exactly the admitted units still count, so that no window exceeds its limit.
    ///
    /// bucket4j's rule of this name adds in the same way where the burst grows, and takes nothing away where it shrinks.
    Additive,
    /// Nothing: it starts full.
    Reset,
}

impl Inherit {
    /// The room of a window after a change of the limit from `old` to `new`, where `room` was left before; negative in
    /// debt. A debt stays, except by a reset.
    pub(super) fn room(self, room: i128, old: u64, new: u64) -> i128 {
        match self {
            // Exactly the admitted units still count.
            Self::Additive => (room + (i128::from(new) - i128::from(old))).min(new.into()),
            _ => self.scaled(room, old.into(), new.into()),
        }
    }

    /// The same for a bucket, which has at most `old`, in any measure: no change alone puts it into debt.
    pub(super) fn scaled(self, room: i128, old: i128, new: i128) -> i128 {
        match self {
            Self::Reset => new,
            Self::AsIs => room.min(new),
            Self::Proportional if room > 0 => share(room, old, new),
            Self::Proportional => room.min(new),
            Self::Additive => room.saturating_add(new - old).max(room.min(0)).min(new),
        }
    }
}

/// The amount that changes of the limit may add, so that no sequence of them mints. It is the excess of the limit over
/// the largest so far, and the amount that earlier changes have taken away.
///
/// With both, a limiter never has more than one of the largest limit would have after the same takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Withheld {
    largest: i128,
    /// The amount taken away; at most the distance of the limit below the largest.
    amount: i128,
}

impl Withheld {
    /// The first limit.
    pub(super) fn new(limit: i128) -> Self {
        Self {
            largest: limit,
            amount: 0,
        }
    }

    /// The rest of `kept` after a change to `limit`, if the rule says `wanted`.
    pub(super) fn change(self, kept: i128, wanted: i128, limit: i128) -> (Self, i128) {
        let grown = (limit - self.largest).max(0);
        let raised = wanted.saturating_sub(kept).min(grown + self.amount);
        let largest = self.largest + grown;
        // Nothing is withheld at the largest limit, which a limit that has grown is.
        let amount = (self.amount - raised).clamp(0, largest - limit);
        (Self { largest, amount }, kept + raised)
    }
}

/// `room x new / old`, rounded down; all three positive, `room` at most `old`.
fn share(room: i128, old: i128, new: i128) -> i128 {
    if let Some(product) = room.checked_mul(new) {
        return product / old;
    }
    // Bit by bit of `new`, from the top: quotient and rest of the bits above, times `room`.
    let (room, old) = (room as u128, old as u128);
    let (mut quotient, mut rest) = (0, 0);
    for bit in (0..128 - new.leading_zeros()).rev() {
        quotient *= 2;
        // The rest is below `old`, the room at most that, and that is below 2^127: neither sum overflows.
        for part in [rest, room * (new as u128 >> bit & 1)] {
            rest += part;
            if rest >= old {
                rest -= old;
                quotient += 1;
            }
        }
    }
    quotient
}

#[cfg(test)]
mod tests {
    use super::Inherit::{self, *};
    use super::Withheld;

    /// Rows of (room before, old limit, new limit, room after).
    #[track_caller]
    fn table(rule: Inherit, rows: &[(i128, u64, u64, i128)]) {
        for &(room, old, new, after) in rows {
            let found = rule.room(room, old, new);
            assert_eq!(
                found, after,
                "{rule:?}: room for {room} of {old}, then a limit of {new}"
            );
        }
    }

    /// Rows of (limit, the rule's amount, the rest), one change after the other, from 100 with `kept` left.
    #[track_caller]
    fn changes(mut kept: i128, rows: &[(i128, i128, i128)]) {
        let mut withheld = Withheld::new(100);
        for &(limit, wanted, left) in rows {
            (withheld, kept) = withheld.change(kept, wanted, limit);
            assert_eq!(kept, left, "{limit}, by a rule that says {wanted}");
        }
    }

    #[test]
    fn a_change_adds_the_growth_of_the_limit_and_the_amount_changes_took_away() {
        changes(
            0,
            &[(50, 0, 0), (100, 50, 0), (150, 50, 50), (100, 0, 0), (150, 70, 50)],
        );
        changes(80, &[(50, 50, 50), (100, 100, 80), (50, 30, 30), (60, 60, 60)]);
        // The excess over every later limit is gone.
        changes(100, &[(50, 50, 50), (100, 50, 50), (50, 50, 50), (100, 100, 50)]);
        changes(-30, &[(50, -30, -30), (100, 20, -30), (110, 70, -20)]);
    }

    #[test]
    fn as_is_keeps_the_room_up_to_the_new_limit() {
        table(
            AsIs,
            &[
                (4, 10, 20, 4),
                (4, 10, 3, 3),
                (10, 10, 20, 10),
                (0, 10, 5, 0),
                (-3, 10, 20, -3),
                (0, 0, 7, 0),
            ],
        );
    }

    #[test]
    fn proportional_keeps_the_share() {
        table(
            Proportional,
            &[
                (4, 10, 20, 8),
                (4, 10, 5, 2),
                (3, 10, 5, 1),
                (10, 10, 7, 7),
                (0, 10, 20, 0),
                (-3, 10, 20, -3),
                (0, 0, 7, 0),
                (1 << 39, 1 << 40, u64::MAX - 1, (1 << 63) - 1),
            ],
        );
    }

    #[test]
    fn additive_keeps_what_was_taken() {
        table(
            Additive,
            &[
                (4, 10, 20, 14),
                (4, 10, 7, 1),
                (4, 10, 2, -4),
                (-4, 2, 10, 4),
                (10, 10, 3, 3),
                (-3, 10, 20, 7),
                (-3, 10, 5, -8),
            ],
        );
        let bucket = |room, old, new| Additive.scaled(room, old, new);
        assert_eq!(
            [
                bucket(4, 10, 7),
                bucket(4, 10, 2),
                bucket(-3, 10, 5),
                bucket(-3, 10, 20)
            ],
            [1, 0, -3, 7]
        );
    }

    #[test]
    fn reset_keeps_nothing() {
        table(
            Reset,
            &[(4, 10, 20, 20), (0, 10, 3, 3), (-3, 10, 20, 20), (4, 10, 0, 0)],
        );
    }

    /// Also where the product takes more than 127 bits.
    #[test]
    fn the_share_of_huge_numbers_is_exact() {
        for (old, new) in [
            (100, 100),
            (100, 60),
            (60, 100),
            (120, 126),
            (126, 80),
            (90, 38),
            (126, 126),
        ] {
            for (part, of) in [(1i128, 8i128), (5, 8), (1, 1_024), (1_023, 1_024)] {
                // The addition to the room is too little to yield one more.
                for more in [0, 1] {
                    let room = (1i128 << old) / of * part + if new < old { more } else { 0 };
                    let exact = (1i128 << new) / of * part;
                    assert_eq!(
                        super::share(room, 1 << old, 1 << new),
                        exact,
                        "{old} {new} {part} of {of}"
                    );
                }
            }
        }
        let third = i128::MAX / 3;
        assert_eq!(super::share(third, i128::MAX, i128::MAX), third);
        assert_eq!(super::share(third, third * 3, 3 << 100), 1 << 100);
        assert_eq!(super::share(third, third * 3 + 1, 3 << 100), (1 << 100) - 1);
    }
}
