//! What a running limiter keeps when its quota changes: the four rules, in one formula for every limiter behind a lock.

pub use super::bucket::Inherit;

impl Inherit {
    /// The room that a window has left after a change of the limit from `old` to `new`; `room` was left before, and is
    /// negative in debt. A debt stays, but for a reset.
    pub(super) fn room(self, room: i128, old: u64, new: u64) -> i128 {
        match self {
            // Exactly what was admitted still counts.
            Self::Additive => (room + (i128::from(new) - i128::from(old))).min(new.into()),
            _ => self.scaled(room, old.into(), new.into()),
        }
    }

    /// The same for what a bucket has left, in any measure: it gets into no debt by a change alone.
    pub(super) fn scaled(self, room: i128, old: i128, new: i128) -> i128 {
        match self {
            Self::Reset => new,
            Self::AsIs => room.min(new),
            // Nothing was used, and nothing is.
            Self::Proportional if room >= old && old > 0 => new,
            Self::Proportional if room > 0 => share(room, old, new),
            Self::Proportional => room.min(new),
            Self::Additive => room.saturating_add(new - old).max(room.min(0)).min(new),
        }
    }
}

/// `room x new / old`, rounded down; all three positive, `room` below `old`.
fn share(room: i128, old: i128, new: i128) -> i128 {
    match room.checked_mul(new) {
        Some(product) => product / old,
        // Within one part in 2^60.
        None => {
            let bits = 128 - old.leading_zeros().min(new.leading_zeros());
            let shift = bits.saturating_sub(62);
            ((room >> shift) * (new >> shift) / (old >> shift).max(1)) << shift
        }
    }
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
}
