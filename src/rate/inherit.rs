//! What a running limiter keeps when its quota changes: the four rules, in one formula for every limiter behind a lock.

pub use super::bucket::Inherit;

impl Inherit {
    /// The room that a window has left after a change of the limit from `old` to `new`; `room` was left before, and is
    /// negative in debt. A debt stays, but for a reset.
    pub(super) fn room(self, room: i128, old: u64, new: u64) -> i128 {
        match self {
            // Exactly what was admitted still counts.
            Self::Additive if !seeded!("additive_forgives") => {
                (room + (i128::from(new) - i128::from(old))).min(new.into())
            }
            _ => self.scaled(room, old.into(), new.into()),
        }
    }

    /// The same for what a bucket has left, at most `old`, in any measure: it gets into no debt by a change alone.
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

/// `room x new / old`, rounded down; all three positive, `room` at most `old`.
fn share(room: i128, old: i128, new: i128) -> i128 {
    if let Some(product) = room.checked_mul(new) {
        return product / old;
    }
    // Bit by bit of `new`, from the top: quotient and rest of what is above, times `room`.
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
                // What is added to the room is too little to yield one more.
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
