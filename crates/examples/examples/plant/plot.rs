//! The limits over time, as an SVG.

use crate::{END, Row, ideal};
use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 50.0;
const TOP: f64 = 20.0;
/// The greatest limit that is drawn.
const MOST: f64 = 120.0;
const COLOURS: [&str; 8] = [
    "#000000", "#999999", "#d55e00", "#0072b2", "#e69f00", "#56b4e9", "#009e73", "#cc79a7",
];

fn line(values: impl Iterator<Item = f64>, colour: &str, dashes: &str) -> String {
    let points: Vec<_> = values
        .enumerate()
        .map(|(second, value)| {
            let x = LEFT + second as f64 * WIDTH / END as f64;
            let y = TOP + HEIGHT * (1.0 - value.min(MOST) / MOST);
            format!("{x:.1},{y:.1}")
        })
        .collect();
    let points = points.join(" ");
    format!(
        "<polyline fill='none' stroke='{colour}' stroke-width='1.5' stroke-dasharray='{dashes}' points='{points}'/>\n"
    )
}

pub(crate) fn svg(rows: &[Row]) -> String {
    let (width, height) = (LEFT + WIDTH + 130.0, TOP + HEIGHT + 40.0);
    let mut out = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' font-family='sans-serif' font-size='12'>\n\
         <rect width='100%' height='100%' fill='white'/>\n"
    );
    for value in [0, 20, 40, 60, 80, 100, 120] {
        let y = TOP + HEIGHT * (1.0 - f64::from(value) / MOST);
        let right = LEFT + WIDTH;
        let _ = writeln!(
            out,
            "<line x1='{LEFT}' x2='{right}' y1='{y:.1}' y2='{y:.1}' stroke='#dddddd'/><text x='20' y='{:.1}'>{value}</text>",
            y + 4.0
        );
    }
    for second in (0..=END).step_by(30) {
        let x = LEFT + second as f64 * WIDTH / END as f64;
        let _ = writeln!(out, "<text x='{x:.1}' y='{}'>{second} s</text>", TOP + HEIGHT + 20.0);
    }
    out += &line((0..END).map(|second| ideal(second) as f64), COLOURS[0], "5 3");
    let limit = |row: &Row| row.seconds.iter().map(|second| second.limit as f64).collect::<Vec<_>>();
    for (row, colour) in rows.iter().zip(COLOURS).skip(1) {
        out += &line(limit(row).into_iter(), colour, "");
    }
    for (place, (row, colour)) in rows.iter().zip(COLOURS).enumerate() {
        let (x, y) = (LEFT + WIDTH + 15.0, TOP + 20.0 * place as f64 + 10.0);
        let _ = writeln!(out, "<text x='{x}' y='{y}' fill='{colour}'>{}</text>", row.name);
    }
    out + "</svg>\n"
}
