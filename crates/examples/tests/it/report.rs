//! The numbers behind the plots of the examples' pages.

#[allow(unreachable_pub, dead_code)]
#[path = "../../../../examples/report/mod.rs"]
pub(crate) mod page;

use page::plot::{Plot, Series, Shape};
use page::series::{Event, Kind, Leg, Run, groups, highest};
use page::{Page, Table, ticks};
use proptest::prelude::*;

#[test]
fn numbers_and_instants_are_written_as_people_read_them() {
    let numbers = [0.0, 7.0, 999.0, 1_000.0, 1_234_567.0, -12_345.6, 2.5, 0.25, 0.00041];
    let written: Vec<_> = numbers.into_iter().map(ticks::number).collect();
    assert_eq!(
        written,
        [
            "0",
            "7",
            "999",
            "1,000",
            "1,234,567",
            "-12,346",
            "2.5",
            "0.25",
            "0.0004"
        ]
    );
    let instants: Vec<_> = [0.0, 0.5, 90.0, 600.0, 3_435.6, 7_200.0, 46_321.0]
        .into_iter()
        .map(ticks::instant)
        .collect();
    assert_eq!(
        instants,
        ["0 s", "0.50 s", "90 s", "10 min", "57:16 min", "2:00 h", "12:52:01 h"]
    );
}

#[test]
fn axes_are_marked_at_round_numbers() {
    assert_eq!(ticks::round(24.0, 5), [0.0, 5.0, 10.0, 15.0, 20.0]);
    assert_eq!(ticks::round(1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
    assert_eq!(ticks::length(3_600.0, 300), 15.0);
    assert_eq!(ticks::length(46_321.0, 300), 300.0);
    assert_eq!(ticks::length(0.0, 300), 0.001);
    assert_eq!(ticks::length(86_400.0 * 3_000.0, 300), 86_400.0 * 10.0);
}

/// At one instant what ends goes first: a place that is given back and taken again is held once.
#[test]
fn the_highest_level_counts_a_place_that_changes_hands_once() {
    let event = |arrived, ended, finished| Event {
        arrived,
        ended,
        finished: Some(finished),
        ..Event::default()
    };
    assert_eq!(highest(&[event(0, 0, 10), event(3, 10, 20), event(4, 20, 30)]), (1, 2));
    assert_eq!(highest(&[event(0, 0, 10), event(3, 9, 20)]), (2, 1));
    assert_eq!(highest(&[]), (0, 0));
}

#[test]
fn text_is_escaped_wherever_it_stands() {
    let odd = "<b onclick=\"x\">&'";
    let page = Page {
        title: odd.into(),
        lead: odd.into(),
        tables: vec![Table {
            title: odd.into(),
            head: vec![odd.into()],
            rows: vec![vec![odd.into(), odd.into()]],
        }],
        groups: vec![page::Group {
            title: odd.into(),
            about: odd.into(),
            plots: vec![Plot {
                caption: odd.into(),
                step: 1.0,
                series: vec![Series {
                    name: odd.into(),
                    values: vec![1.0],
                    shape: Shape::Area,
                    tone: 1,
                }],
                limits: vec![(odd.into(), 2.0)],
            }],
        }],
        below: Vec::new(),
        notes: vec![odd.into()],
    };
    let text = page.render();
    assert!(!text.contains("<b ") && !text.contains("=\"x\""));
    assert!(text.matches("&lt;b onclick=&quot;x&quot;&gt;&amp;").count() >= 12);
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = (
        0..3_000_000_000u64,
        0..2_000_000_000u64,
        0..2_000_000_000u64,
        0..3u8,
        0..50u64,
    );
    let event = event.prop_map(|(arrived, wait, work, refused, units)| Event {
        arrived,
        ended: arrived + wait,
        finished: (refused > 0).then_some(arrived + wait + work),
        refused_by: (refused == 0).then(|| "rate".to_owned()),
        units: vec![[units, units]],
    });
    prop::collection::vec(event, 0..60)
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// No request is lost between the events and the plots, whatever the steps are; and no level is missed.
    #[test]
    fn the_plots_hold_every_request(events in events()) {
        let legs = [
            Leg { name: "rate".into(), kind: Kind::Rate { per_second: 100.0, cost: Some(0) } },
            Leg { name: "slots".into(), kind: Kind::Slots { limit: 5.0 } },
        ];
        let run = Run { caption: String::new(), legs: &legs, events: &events };
        let groups = groups(&[run]);
        let sum = |group: usize, series: usize| {
            let series = groups[group].plots[0].series.get(series);
            series.map_or(0.0, |series| series.values.iter().sum::<f64>())
        };
        let most = |group: usize| groups[group].plots[0].series[0].values.iter().copied().fold(0.0, f64::max);
        let refused = events.iter().filter(|event| event.refused_by.is_some()).count() as f64;
        prop_assert_eq!(sum(0, 0), events.len() as f64);
        prop_assert_eq!(sum(0, 1), events.len() as f64 - refused);
        prop_assert_eq!(sum(1, 0), refused);
        let (in_flight, waiting) = highest(&events);
        prop_assert_eq!((most(3), most(2)), (in_flight as f64, waiting as f64));
        // Per cent of what flows in per step, back in units.
        let step = groups[4].plots[0].step;
        let units: u64 = events.iter().filter(|event| event.refused_by.is_none()).map(|event| event.units[0][0]).sum();
        prop_assert!((sum(4, 0) * step - units as f64).abs() < 1e-6);
    }
}
