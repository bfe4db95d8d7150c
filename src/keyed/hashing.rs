//! The hash functions of keys.
//!
//! An attacker who chooses keys must not be able to choose keys of one hash. They would fill one run of cells, which
//! every lookup there walks through under the lock. So the hash has 128 secret bits, which the operating system draws
//! for each map. No method of a map reveals a hash, or an order that depends on one.
//!
//! foldhash resists keys that were chosen without the secret. It does not claim to resist an attacker who times many
//! single lookups, nanosecond by nanosecond, and solves for the secret; SipHash does.

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// A hash function with its secret.
pub(super) enum Hashing {
    Fold { seed: u64, shared: SharedSeed },
    Sip(RandomState),
}

impl Hashing {
    pub(super) fn fold() -> Self {
        // The standard library has its keys from the operating system.
        let random = RandomState::new();
        Self::Fold {
            seed: random.hash_one(0),
            shared: SharedSeed::from_u64(random.hash_one(1)),
        }
    }

    pub(super) fn sip() -> Self {
        Self::Sip(RandomState::new())
    }

    pub(super) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        match self {
            Self::Fold { seed, shared } => {
                let mut hasher = FoldHasher::with_seed(*seed, shared);
                key.hash(&mut hasher);
                hasher.finish()
            }
            Self::Sip(state) => state.hash_one(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_map_hashes_by_a_secret_of_its_own() {
        for make in [Hashing::fold, Hashing::sip] {
            let (a, b) = (make(), make());
            let same = (0..1_000u64).filter(|key| a.hash(key) == b.hash(key)).count();
            assert_eq!(same, 0);
            assert!((0..1_000u64).all(|key| a.hash(&key) == a.hash(&key)));
        }
    }

    /// Given keys that differ in a few bits, or are multiples of a power of two, then both halves of the hash are
    /// spread as evenly as by chance. One is the shard, the other the cell.
    #[test]
    fn keys_that_are_alike_are_spread_evenly() {
        const CELLS: usize = 64;
        const KEYS: u64 = 64_000;
        for hashing in [Hashing::fold(), Hashing::sip()] {
            for shift in [0, 8, 16, 40] {
                for half in [0, 32] {
                    let mut counts = [0u32; CELLS];
                    for key in 0..KEYS {
                        let hash = (hashing.hash(&(key << shift)) >> half) as u32;
                        counts[((u64::from(hash) * CELLS as u64) >> 32) as usize] += 1;
                    }
                    // A thousand each; the standard deviation is 32.
                    assert!(
                        counts.iter().all(|n| (800..1_200).contains(n)),
                        "{shift} {half}: {counts:?}"
                    );
                }
            }
        }
    }
}
