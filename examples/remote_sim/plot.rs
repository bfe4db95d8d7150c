//! Plots the use over time, as an SVG.

use crate::world::Outcome;
use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 50.0;
const TOP: f64 = 20.0;
/// Milliseconds of a sample, and of the run.
const SAMPLE: usize = 25;
const END: f64 = 3_500.0;
const DEATH: f64 = 1_500.0;
const COLOURS: [&str; 6] = ["#000000", "#d55e00", "#0072b2", "#999999", "#e69f00", "#009e73"];

fn x(millis: f64) -> f64 {
    LEFT + millis * WIDTH / END
}

fn y(share: f64) -> f64 {
    TOP + HEIGHT * (1.0 - share.min(1.2) / 1.2)
}

pub(crate) fn svg(outcomes: &[(&str, Outcome)]) -> String {
    let (width, height) = (LEFT + WIDTH + 200.0, TOP + HEIGHT + 40.0);
    let mut out = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' font-family='sans-serif' font-size='12'>\n\
         <rect width='100%' height='100%' fill='white'/>\n"
    );
    for percent in [0, 20, 40, 60, 80, 100] {
        let (at, right) = (y(f64::from(percent) / 100.0), LEFT + WIDTH);
        let _ = writeln!(
            out,
            "<line x1='{LEFT}' x2='{right}' y1='{at:.1}' y2='{at:.1}' stroke='#dddddd'/>\
             <text x='10' y='{:.1}'>{percent} %</text>",
            at + 4.0
        );
    }
    for millis in (0..=3_500).step_by(500) {
        let _ = writeln!(
            out,
            "<text x='{:.1}' y='{}'>{millis} ms</text>",
            x(f64::from(millis)) - 15.0,
            TOP + HEIGHT + 20.0
        );
    }
    let at = x(DEATH);
    let _ = writeln!(
        out,
        "<line x1='{at:.1}' x2='{at:.1}' y1='{TOP}' y2='{}' stroke='#cc0000'/>",
        TOP + HEIGHT
    );
    for (place, ((name, outcome), colour)) in outcomes.iter().zip(COLOURS).enumerate() {
        let points = outcome.used.iter().enumerate().map(|(n, &share)| {
            let millis = ((n + 1) * SAMPLE) as f64;
            format!("{:.1},{:.1}", x(millis), y(share))
        });
        let points = points.collect::<Vec<_>>().join(" ");
        let _ = writeln!(
            out,
            "<polyline fill='none' stroke='{colour}' stroke-width='1.5' points='{points}'/>"
        );
        let (left, line) = (LEFT + WIDTH + 15.0, TOP + 20.0 * place as f64 + 10.0);
        let _ = writeln!(out, "<text x='{left}' y='{line}' fill='{colour}'>{name}</text>");
    }
    out + "</svg>\n"
}
