//! One plot as SVG: series over time in even steps, and limits as dashed lines.

use super::ticks;
use maud::{Markup, html};
use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 28.0;

/// How a series is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A line, with a faint area below.
    Area,
    Line,
    /// An area on top of the series before it.
    Stacked,
}

/// Values over time, one per step.
pub struct Series {
    pub name: String,
    pub values: Vec<f64>,
    pub shape: Shape,
    /// Which colour of the page.
    pub tone: usize,
}

/// One plot.
pub struct Plot {
    /// The mark that distinguishes it from its neighbours; may be empty.
    pub caption: String,
    /// How many seconds a step takes.
    pub step: f64,
    pub series: Vec<Series>,
    /// Names and heights of limits.
    pub limits: Vec<(String, f64)>,
}

/// Where values and instants lie on the picture.
struct Scale {
    step: f64,
    width: f64,
    top: f64,
}

impl Scale {
    fn x(&self, index: usize) -> f64 {
        LEFT + index as f64 * self.step * self.width
    }
    fn y(&self, value: f64) -> f64 {
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - (value / self.top).clamp(0.0, 1.0))
    }

    /// A staircase along `values`, from left to right.
    fn stairs(&self, values: &[f64]) -> String {
        let mut path = String::new();
        let mut last = None;
        for (index, &value) in values.iter().enumerate() {
            let y = self.y(value);
            if last.is_none() {
                let _ = write!(path, "M{:.1} {y:.1}", self.x(index));
            } else if last != Some(y) {
                let _ = write!(path, "H{:.1}V{y:.1}", self.x(index));
            }
            last = Some(y);
        }
        let _ = write!(path, "H{:.1}", self.x(values.len()));
        path
    }

    /// The staircase, closed along `floor` from right to left.
    fn area(&self, values: &[f64], floor: &[f64]) -> String {
        let mut path = self.stairs(values);
        let mut last = f64::NAN;
        for (index, &value) in floor.iter().enumerate().rev() {
            let y = self.y(value);
            if y != last {
                let _ = write!(path, "H{:.1}V{y:.1}", self.x(index + 1));
            }
            last = y;
        }
        let _ = write!(path, "H{:.1}Z", self.x(0));
        path
    }
}

fn joined(values: &[f64]) -> String {
    let texts: Vec<_> = values.iter().map(|&value| ticks::number(value)).collect();
    texts.join(";")
}

impl Plot {
    fn steps(&self) -> usize {
        self.series.iter().map(|series| series.values.len()).max().unwrap_or(0)
    }

    /// The greatest height that is drawn.
    pub fn top(&self) -> f64 {
        let mut stack = vec![0.0; self.steps()];
        let mut top: f64 = self.limits.iter().map(|limit| limit.1).fold(0.0, f64::max);
        for series in &self.series {
            for (sum, &value) in stack.iter_mut().zip(&series.values) {
                if series.shape == Shape::Stacked {
                    *sum += value;
                    top = top.max(*sum);
                }
                top = top.max(value);
            }
        }
        top
    }

    /// The plot, with heights up to `top`.
    pub fn render(&self, title: &str, top: f64) -> Markup {
        let steps = self.steps().max(1);
        let span = steps as f64 * self.step;
        let scale = Scale {
            step: self.step,
            width: (WIDTH - LEFT - RIGHT) / span,
            top: if top > 0.0 { top * 1.06 } else { 1.0 },
        };
        let (end, floor) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let label = format!(
            "{title}{}{}",
            if self.caption.is_empty() { "" } else { ": " },
            self.caption
        );
        html! {
            figure {
                figcaption {
                    @if !self.caption.is_empty() { strong { (self.caption) } " " }
                    @for series in &self.series { span.key { i class=(format!("tone{}", series.tone % 8)) {} (series.name) } }
                    @for (name, value) in &self.limits { span.key { i.limit {} (name) " " (ticks::number(*value)) } }
                }
                svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(label) data-left=(LEFT) data-right=(end)
                    data-step=(self.step) data-steps=(steps) {
                    @for value in ticks::round(scale.top, 5) {
                        line.grid x1=(LEFT) x2=(end) y1=(fixed(scale.y(value))) y2=(fixed(scale.y(value))) {}
                        text.side x=(LEFT - 6.0) y=(fixed(scale.y(value) + 4.0)) { (ticks::number(value)) }
                    }
                    @for (x, text) in marks(span, &scale) {
                        line.mark x1=(fixed(x)) x2=(fixed(x)) y1=(floor) y2=(floor + 4.0) {}
                        text.foot x=(fixed(x)) y=(floor + 18.0) { (text) }
                    }
                    (self.drawn(&scale, steps))
                    @for (name, value) in &self.limits {
                        line.limit x1=(LEFT) x2=(end) y1=(fixed(scale.y(*value))) y2=(fixed(scale.y(*value))) {
                            title { (name) " " (ticks::number(*value)) }
                        }
                    }
                    line.axis x1=(LEFT) x2=(end) y1=(floor) y2=(floor) {}
                    line.cursor x1="0" x2="0" y1=(TOP) y2=(floor) {}
                }
                output.tip {}
            }
        }
    }

    fn drawn(&self, scale: &Scale, steps: usize) -> Markup {
        let mut stack = vec![0.0; steps];
        html! {
            @for series in &self.series {
                @let tone = format!("tone{}", series.tone % 8);
                @let values = joined(&series.values);
                @if series.shape == Shape::Stacked {
                    @let below = stack.clone();
                    @let above = { add(&mut stack, &series.values); &stack };
                    path class=(format!("{tone} stacked")) d=(scale.area(above, &below)) data-name=(series.name) data-values=(values) {}
                } @else {
                    @if series.shape == Shape::Area {
                        path class=(format!("{tone} area")) d=(scale.area(&series.values, &vec![0.0; series.values.len()])) {}
                    }
                    path class=(format!("{tone} line")) d=(scale.stairs(&series.values)) data-name=(series.name) data-values=(values) {}
                }
            }
        }
    }
}

fn add(stack: &mut [f64], values: &[f64]) {
    for (sum, value) in stack.iter_mut().zip(values) {
        *sum += value;
    }
}

fn fixed(value: f64) -> String {
    format!("{value:.1}")
}

/// Where time is marked, and how.
fn marks(span: f64, scale: &Scale) -> Vec<(f64, String)> {
    let step = ticks::length(span, 8);
    (0..=(span / step).floor() as usize)
        .map(|n| n as f64 * step)
        .map(|at| (LEFT + at * scale.width, ticks::instant(at)))
        .collect()
}
