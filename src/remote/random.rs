//! Random numbers that differ between processes.

use std::hash::{BuildHasher, RandomState};

/// Draws a number from the operating system, and mixes it with the process id. A forked process has the memory of its parent,
/// with the keys of the standard hasher, and still draws another number.
///
/// ```
/// # use tollgate::remote::model::random_number;
/// assert_ne!(random_number(), random_number());
/// ```
pub fn number() -> u64 {
    mixed(&RandomState::new(), getrandom::u64().ok(), std::process::id())
}

/// `drawn` is `None` if the system has no random numbers.
fn mixed(inherited: &RandomState, drawn: Option<u64>, process: u32) -> u64 {
    inherited.hash_one((drawn, process))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_forked_from_one_parent_draw_different_numbers() {
        let inherited = RandomState::new();
        assert_ne!(mixed(&inherited, Some(1), 7), mixed(&inherited, Some(2), 7));
        assert_ne!(
            mixed(&inherited, None, 7),
            mixed(&inherited, None, 8),
            "also without the system"
        );
        let here = |drawn| mixed(&inherited, drawn, std::process::id());
        assert_ne!(here(getrandom::u64().ok()), here(getrandom::u64().ok()));
        assert_ne!(number(), number());
    }
}
