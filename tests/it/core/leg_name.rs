//! The names of legs: copyable values, whether they stand in the program or were made at run time.

use tollgate::{LegName, LimiterExt, Reason, Refusal, Semaphore, Wait};

#[test]
fn a_name_of_the_program_has_any_length() {
    let long: &'static str =
        "the number of requests that one tenant of the whole service may have in flight at any instant";
    let refused = Semaphore::new(0).named(long).try_admit(1).unwrap_err();
    assert_eq!((refused.leg(), refused.leg_name()), (long, LegName::from(long)));
}

#[test]
fn a_name_made_at_run_time_outlives_its_limiter_and_its_text() {
    let refused: Refusal = {
        let text = format!("tenant {}", 7);
        let gate = Semaphore::new(0).named(&text);
        drop(text);
        gate.try_admit(1).unwrap_err()
    };
    let copy = refused;
    assert_eq!(
        (copy.leg(), refused.to_string()),
        ("tenant 7", "limiter `tenant 7` is saturated".to_owned())
    );
    assert_eq!(refused.leg_name(), LegName::from("tenant 7"), "wherever the text is");
}

/// Whatever the length of the characters, a name that is too long is cut before the first that does not fit.
#[test]
fn a_long_name_made_at_run_time_is_cut_between_characters() {
    for (character, bytes) in [("x", 1), ("ä", 2), ("€", 3), ("🦀", 4)] {
        let text = character.repeat(99);
        let name = LegName::copied(&text);
        assert_eq!(name.len(), LegName::MAX_RUNTIME / bytes * bytes, "{character}");
        assert!(text.starts_with(&*name));
    }
    let fits = "y".repeat(LegName::MAX_RUNTIME);
    assert_eq!(&*LegName::from(fits.clone()), fits);
}

#[test]
fn no_name_leaves_the_name_of_the_limiter() {
    let gate = Semaphore::new(0).named(LegName::NONE);
    assert_eq!(gate.try_admit(1).unwrap_err().leg(), "semaphore");
    let renamed = Refusal::new(Reason::Saturated, "inner", Wait::EVENT).named(LegName::from("outer"));
    assert_eq!(renamed.leg(), "outer");
    assert_eq!(renamed.named(LegName::NONE).leg(), "outer");
}
