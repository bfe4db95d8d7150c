//! Budgets in files: what is read, and mistakes with their places.

use std::time::Duration;
use tollgate_budget::{Budgets, Limit, MONEY, OUTPUT, Period, Rule};

const GOOD: &str = r#"
max_levels = 5_000

[[rule]]
name = "organisation"
per = ["organisation"]

[[rule.limit]]
of = "money"
amount = 50_000_000_000
per = "month"
time_zone = "Europe/Berlin"

[[rule.limit]]
of = "requests"
amount = 600
per = "10m"
soft = true

[[rule]]
name = "large"
per = ["organisation", "user"]
when = { model = "large" }
limit = [{ of = "output", amount = 1_000, per = "day" }, { of = "in flight", amount = 4 }]
"#;

#[test]
fn a_file_is_what_code_builds() {
    let code = Budgets::builder()
        .max_levels(5_000)
        .rule(
            Rule::new("organisation")
                .per(["organisation"])
                .limit(Limit::cost(MONEY, 50_000_000_000, Period::Month).time_zone("Europe/Berlin"))
                .limit(Limit::requests(600, Period::Rolling(Duration::from_secs(600))).soft()),
        )
        .rule(
            Rule::new("large")
                .per(["organisation", "user"])
                .when("model", "large")
                .limit(Limit::cost(OUTPUT, 1_000, Period::Day))
                .limit(Limit::in_flight(4)),
        );
    let read = Budgets::parse(GOOD).unwrap();
    assert_eq!(format!("{read:?}"), format!("{code:?}"));
    assert!(read.build().is_ok());
}

#[test]
fn a_file_says_who_borrows() {
    let limit = Limit::cost(OUTPUT, 1_000, Period::Day);
    let code = Budgets::builder()
        .rule(Rule::new("all").limit(limit))
        .rule(Rule::new("team").per(["team"]).borrows_from("all").weight("search", 3));
    let text = "[[rule]]\nname = \"all\"\nlimit = [{ of = \"output\", amount = 1_000, per = \"day\" }]\n\n\
                [[rule]]\nname = \"team\"\nper = [\"team\"]\nborrows_from = \"all\"\nweights = { search = 3 }\n";
    assert_eq!(format!("{:?}", Budgets::parse(text).unwrap()), format!("{code:?}"));
    let rows = [
        (
            "borrows_from = \"all\"",
            "borrows_from = \"al\"",
            "6:8",
            "a rule before it",
        ),
        ("search = 3", "search = 0", "5:1", "1 or more"),
        ("borrows_from = \"all\"\n", "", "5:1", "one or more"),
        ("per = [\"team\"]", "when = { a = \"b\" }", "6:8", "the same `when`"),
    ];
    for (old, new, place, why) in rows {
        assert!(text.contains(old), "{old}");
        let error = Budgets::parse(&text.replacen(old, new, 1)).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("budgets:{place}: ")) && error.contains(why),
            "{new}: {error}"
        );
    }
    let twice = format!("{text}[[rule]]\nname = \"user\"\nper = [\"user\"]\nborrows_from = \"all\"\n");
    assert!(
        Budgets::parse(&twice)
            .unwrap_err()
            .to_string()
            .contains("each rule once")
    );
}

#[test]
fn a_mistake_is_named_with_its_line_and_column() {
    // What is replaced, by what, and where that is wrong.
    let rows = [
        ("max_levels = 5_000", "max_levels = 0", "2:14", "at least 1"),
        ("max_levels = 5_000", "max_level = 5_000", "2:1", "max_level"),
        ("amount = 600", "amount = -1", "16:10", "invalid value"),
        ("amount = 600\n", "", "14:1", "amount"),
        ("soft = true", "sofd = true", "18:1", "unknown field `sofd`"),
        ("soft = true", "soft = 1", "18:8", "boolean"),
        (
            "per = \"10m\"",
            "per = \"10x\"",
            "17:7",
            "`10x` was given, and minute, hour",
        ),
        ("per = \"10m\"", "per = \"400 days\"", "17:7", "1 ms to 366 days"),
        (
            "per = \"10m\"\n",
            "",
            "14:1",
            "`per` is missing: the period of `requests`",
        ),
        ("Europe/Berlin", "Europe/Berlim", "12:13", "`Europe/Berlim` was given"),
        ("amount = 4 }", "amount = 4, per = \"day\" }", "24:96", "no period"),
        ("of = \"output\"", "of = \"\"", "24:17", "an empty text"),
        ("name = \"large\"", "name = \"organisation\"", "21:8", "each name once"),
        (
            "[\"organisation\", \"user\"]",
            "[\"user\", \"user\"]",
            "20:1",
            "each dimension once",
        ),
        (
            "limit = [",
            "limit = [{ of = \"a\", amount = 1, per = \"day\" }, { of = \"b\", amount = 1, per = \"day\" }, \
          { of = \"c\", amount = 1, per = \"day\" }, ",
            "21:8",
            "four costs",
        ),
        ("[[rule]]\nname = \"large\"", "[[rule]\nname = \"large\"", "20:8", ""),
    ];
    for (old, new, place, why) in rows {
        assert!(GOOD.contains(old), "{old}");
        let error = Budgets::parse(&GOOD.replacen(old, new, 1)).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("budgets:{place}: ")) && error.contains(why),
            "{new}: {error}"
        );
    }
    let missing = Budgets::read("no/such/budgets.toml").unwrap_err();
    assert!(missing.to_string().starts_with("no/such/budgets.toml: ") && missing.line().is_none());
}

#[test]
fn a_file_that_is_no_text_is_refused_with_the_place() {
    let path = std::env::temp_dir().join(format!("budgets-{}.toml", std::process::id()));
    std::fs::write(&path, b"max_levels = 5\n# \xff").unwrap();
    let error = Budgets::read(&path).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert_eq!((error.line(), error.column()), (Some(2), Some(3)));
}

/// Given a file as long as is allowed, of rules as short as can be, then reading it takes time in proportion.
#[test]
fn a_long_file_is_read_in_time_in_proportion() {
    let rules: String = (0..8_000)
        .map(|rule| {
            format!("[[rule]]\nname = \"{rule}\"\nlimit = [{{ of = \"output\", amount = 1, per = \"day\" }}]\n")
        })
        .collect();
    assert!(Budgets::parse(&rules).unwrap().build().is_ok());
}
