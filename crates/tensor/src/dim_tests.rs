//! Dims against brute force: random expressions evaluated naively over small values.

use proptest::prelude::*;

use crate::{Answer, Bindings, Dim, Ranges, SymbolRange, eq, le, lt};

fn dim(text: &str) -> Dim {
    Dim::parse(text).unwrap()
}

fn print(text: &str) -> String {
    dim(text).to_string()
}

/// Ranges from `(name, lo, hi, multiple)`.
fn ranges(list: &[(&str, i64, i64, i64)]) -> Ranges {
    list.iter().map(|&(name, lo, hi, multiple)| (name, SymbolRange { lo, hi, multiple })).collect()
}

#[test]
fn equal_sums_have_one_form() {
    assert_eq!(dim("(n + 1)*(n - 1)"), dim("n*n - 1"));
    assert_eq!(dim("b*(past + seq)"), dim("seq*b + past*b"));
    assert_eq!(dim("n - n"), Dim::ZERO);
    assert_eq!(print("3 - 2*n*m"), "-2*m*n + 3");
}

#[test]
fn divisions_by_numbers_split_off_whole_multiples() {
    assert_eq!(print("4*n floordiv 4"), "n");
    assert_eq!(print("(4*n + 8) floordiv 4"), "n + 2");
    assert_eq!(print("4*n mod 4"), "0");
    assert_eq!(print("(n - 1) floordiv 2 + 1"), "(n + 1) floordiv 2");
    assert_eq!(print("(2*n + 1) floordiv 4"), "n floordiv 2");
    assert_eq!(print("(2*n + 1) mod 4"), "2*(n mod 2) + 1");
    assert_eq!(print("n floordiv 2 floordiv 3"), "n floordiv 6");
    assert_eq!(print("n ceildiv 4"), "(n + 3) floordiv 4");
    assert_eq!(print("4*n / 2"), "2*n");
    assert_eq!(print("(n mod 20) mod 4"), "n mod 4");
}

#[test]
fn rounding_down_to_even_within_twenty_is_not_mod_four() {
    let rounded = dim("((i mod 20) floordiv 2 * 2) mod 4");
    let bindings = |value| [("i", value)].into_iter().collect::<Bindings>();
    assert_eq!(rounded.eval(&bindings(1)), Some(0));
    assert_eq!(dim("i mod 4").eval(&bindings(1)), Some(1));
    assert_eq!(eq(&rounded, &dim("i mod 4"), &Ranges::new()), Answer::Unknown);
}

#[test]
fn division_by_zero_stays_until_it_is_bound() {
    for text in ["5 floordiv 0", "n floordiv 0", "n mod 0", "5 / 0", "5 ceildiv 0"] {
        let zero = dim(text);
        assert!(!zero.is_const());
        assert_eq!(zero.to_string(), text);
        assert_eq!(zero.bind(&[("n", 7)].into_iter().collect()), Dim::ZERO);
        assert_eq!(zero.simplify(&Ranges::new()), Dim::ZERO);
    }
    assert_eq!(dim("n floordiv m").bind(&[("m", 0)].into_iter().collect()), Dim::ZERO);
}

#[test]
fn exact_division_cancels_whole_polynomials() {
    let quotient = |left: &str, right: &str| dim(left).floor_div_exact(&dim(right)).map(|dim| dim.to_string());
    assert_eq!(quotient("a*b*12", "12*b"), Some("a".to_owned()));
    assert_eq!(quotient("b*(past + seq)*64", "b*(past + seq)"), Some("64".to_owned()));
    assert_eq!(quotient("(n + 1)*(m + 2)", "n + 1"), Some("m + 2".to_owned()));
    assert_eq!(quotient("n*n - 1", "n + 1"), Some("n - 1".to_owned()));
    assert_eq!(quotient("6*n", "4"), None);
    assert_eq!(quotient("n + 1", "n"), None);
    assert_eq!(quotient("n", "0"), None);
    assert_eq!(quotient("0", "n"), Some("0".to_owned()));
    assert_eq!(quotient("12", "3"), Some("4".to_owned()));
}

#[test]
fn min_and_max_decide_what_is_a_constant_apart() {
    assert_eq!(print("min(n, n + 1)"), "n");
    assert_eq!(print("max(n, 4, n + 2, 3)"), "max(n + 2,4)");
    assert_eq!(print("min(a, min(b, a))"), "min(a,b)");
    // Methods on owned Dims resolve to `Ord`, which must agree.
    assert_eq!(dim("a").min(dim("b")), Dim::min(&dim("a"), &dim("b")));
    assert_eq!(dim("a").max(dim("b")), Dim::max(&dim("a"), &dim("b")));
}

#[test]
fn ranges_decide_min_max_and_divisions() {
    let known = ranges(&[("n", 1, 64, 1), ("k", 0, 64, 8), ("b", 1, 4, 1), ("one", 1, 1, 1)]);
    let simplified = |text: &str| dim(text).simplify(&known).to_string();
    assert_eq!(simplified("max(n - 1, 0)"), "n - 1");
    assert_eq!(simplified("min(n, 9223372036854775807)"), "n");
    assert_eq!(simplified("n mod 65"), "n");
    assert_eq!(simplified("n floordiv 65"), "0");
    assert_eq!(simplified("k mod 4"), "0");
    assert_eq!(simplified("4*(k ceildiv 4)"), "k");
    assert_eq!(simplified("(k + 3) floordiv 8 * 8"), "k");
    assert_eq!(simplified("n / 2"), "n floordiv 2");
    assert_eq!(simplified("(b*n) floordiv b"), "n");
    assert_eq!(simplified("(b*n) floordiv k"), "(b*n) floordiv k");
    assert_eq!(simplified("n*one"), "n");
}

#[test]
fn comparison_answers_from_ranges() {
    let known = ranges(&[("n", 1, 64, 1), ("m", 0, 8, 1), ("k", 0, 64, 2)]);
    let all = |left: &str, right: &str| {
        let (left, right) = (dim(left), dim(right));
        (eq(&left, &right, &known), le(&left, &right, &known), lt(&left, &right, &known))
    };
    assert_eq!(all("n", "n"), (Answer::Yes, Answer::Yes, Answer::No));
    assert_eq!(all("n", "n + 1"), (Answer::No, Answer::Yes, Answer::Yes));
    assert_eq!(all("n", "m"), (Answer::Unknown, Answer::Unknown, Answer::Unknown));
    assert_eq!(all("m", "n + 8"), (Answer::No, Answer::Yes, Answer::Yes));
    assert_eq!(all("n", "max(n, m)").1, Answer::Yes);
    assert_eq!(all("min(n, m) - 1", "n").2, Answer::Yes);
    assert_eq!(all("n floordiv 2", "n").2, Answer::Yes);
    assert_eq!(all("n ceildiv 2", "n").1, Answer::Yes);
    assert_eq!(all("4*(n floordiv 4) + n mod 4", "n").0, Answer::Yes);
    assert_eq!(all("k", "4*m + 1").0, Answer::No);
}

#[test]
fn exporters_spellings_parse() {
    assert_eq!(print("past_sequence_length + sequence_length"), "past_sequence_length + sequence_length");
    assert_eq!(print("floor(x/8)"), "x floordiv 8");
    assert_eq!(print("floor(s0/2 - 1/2) + 1"), "(s0 + 1) floordiv 2");
    assert_eq!(print("ceiling(x/8)"), "(x + 7) floordiv 8");
    assert_eq!(print("((s0 - 1)//2) + Max(1, s1)"), print("max(s1,1) + (s0 - 1) floordiv 2"));
    assert_eq!(print("s0**2 % 4"), "(s0*s0) mod 4");
    assert_eq!(print("x/8"), "x / 8");
    assert_eq!(print("\"batch size\" * 2"), "2*\"batch size\"");
    assert_eq!(print("floor"), "\"floor\"");
    assert_eq!(print("-9223372036854775808 - n"), "-n + -9223372036854775808");
}

#[test]
fn text_that_is_no_dim_is_refused_with_its_place() {
    let message = |text: &str| Dim::parse(text).unwrap_err().to_string();
    assert_eq!(message(""), "dim ``: expected a number, a symbol or `(`, found the end at byte 0");
    assert_eq!(message("n +"), "dim `n +`: expected a number, a symbol or `(`, found the end at byte 3");
    assert_eq!(message("n m"), "dim `n m`: expected an operator or the end, found `m` at byte 2");
    assert_eq!(message("min(n"), "dim `min(n`: expected `)`, found the end at byte 5");
    assert_eq!(message("\"n"), "dim `\"n`: expected a closing quote at byte 0");
    assert!(message("99999999999999999999").contains("fits 64 bits"));
    assert!(message("0batch").contains("a symbol in quotes"));
    assert!(message("floor(min(n/2, 3))").contains("found a fraction"));
    assert!(message("n ** 99").contains("exponent"));
    assert!(message(&"(".repeat(100_000)).contains("nesting"));
    assert!(message(&"-".repeat(100_000)).contains("nesting"));
    assert!(message(&format!("n{}", " mod m".repeat(100_000))).contains("operands"));
    let many: Vec<String> = (0..100_000).map(|index| format!("s{index}")).collect();
    assert!(message(&many.join(" + ")).contains("operands"));
    assert!(message(&format!("max({})", many.join(","))).contains("operands"));
}

#[test]
fn products_too_large_to_expand_still_evaluate_print_and_parse() {
    let sum: Dim = (0..40).map(|index| Dim::symbol(format!("s{index}"))).sum();
    let square = &sum * &(&sum + 1);
    let product = &square * &Dim::symbol("n");
    assert_eq!(Dim::parse(&product.to_string()), Ok(product.clone()));
    let mut bindings: Bindings = (0..40).map(|index| (format!("s{index}"), index)).collect();
    bindings.insert("n", 2);
    assert_eq!(product.eval(&bindings), Some(780 * 781 * 2));
    assert_eq!(product.bind(&bindings), Dim::from(780 * 781 * 2));
}

#[test]
fn the_heaviest_dims_stay_quick() {
    let list = |format: &dyn Fn(usize) -> String| (0..150).map(format).collect::<Vec<_>>();
    let divisions = list(&|index| format!("(s{index} + {index}) floordiv {}", index + 2)).join(" - ");
    let nested = (0..60).fold("n".to_owned(), |inner, index| format!("min(({inner} + m) floordiv 2, s{index})"));
    let mods = (0..60).fold("n".to_owned(), |inner, index| format!("({inner} + s{index}) mod 7 - m mod 3"));
    for text in [format!("max({})", list(&|index| format!("2*s{index}")).join(",")), divisions, nested, mods] {
        let heavy = dim(&text);
        let simplified = heavy.simplify(&Ranges::new());
        assert_eq!(eq(&simplified, &heavy, &Ranges::new()), Answer::Yes);
        assert_eq!(Dim::parse(&heavy.to_string()), Ok(heavy));
    }
}

#[test]
fn arithmetic_beyond_64_bits_saturates() {
    let max = Dim::from(i64::MAX);
    assert_eq!(&max + &Dim::ONE, max);
    assert_eq!(&max * &max, max);
    assert_eq!(-Dim::from(i64::MIN), max);
    assert_eq!(Dim::from(i64::MIN).floor_div(&Dim::from(-1)), max);
    assert_eq!(Dim::from(usize::MAX), max);
    let large = &(&Dim::symbol("n") * &max) * &max;
    assert_eq!(large.eval(&[("n", 2)].into_iter().collect()), Some(i64::MAX));
    assert_eq!(eq(&large, &Dim::ZERO, &ranges(&[("n", 1, 5, 1)])), Answer::No);
    for divisor in [i64::MIN, -3, 3, i64::MAX] {
        let divisor = Dim::from(divisor);
        let smallest = &Dim::symbol("n") * i64::MIN + i64::MIN;
        for result in [smallest.floor_div(&divisor), smallest.ceil_div(&divisor), smallest.modulo(&divisor)] {
            assert_eq!(Dim::parse(&result.to_string()), Ok(result));
        }
    }
}

/// An expression as written, before any canonical form.
#[derive(Clone, Debug)]
enum Tree {
    Number(i64),
    Symbol(usize),
    Binary(Operator, Box<Tree>, Box<Tree>),
}

#[derive(Clone, Copy, Debug)]
enum Operator {
    Add,
    Sub,
    Mul,
    FloorDiv,
    CeilDiv,
    TruncDiv,
    Mod,
    Min,
    Max,
}

const NAMES: [&str; 3] = ["a", "b", "c"];
/// Small enough for brute force, on both sides of zero.
const VALUES: std::ops::RangeInclusive<i64> = -4..=7;

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![(-6..=6_i64).prop_map(Tree::Number), (0..NAMES.len()).prop_map(Tree::Symbol)];
    leaf.prop_recursive(4, 24, 2, |inner| {
        let operator = prop::sample::select(vec![
            Operator::Add,
            Operator::Sub,
            Operator::Mul,
            Operator::FloorDiv,
            Operator::CeilDiv,
            Operator::TruncDiv,
            Operator::Mod,
            Operator::Min,
            Operator::Max,
        ]);
        (operator, inner.clone(), inner)
            .prop_map(|(operator, left, right)| Tree::Binary(operator, Box::new(left), Box::new(right)))
    })
}

impl Tree {
    fn naive(&self, values: [i64; 3]) -> i128 {
        match self {
            Tree::Number(value) => i128::from(*value),
            Tree::Symbol(index) => i128::from(values[*index]),
            Tree::Binary(operator, left, right) => {
                let (left, right) = (left.naive(values), right.naive(values));
                let floor = |left: i128, right: i128| (left as f64 / right as f64).floor() as i128;
                match operator {
                    Operator::Add => left + right,
                    Operator::Sub => left - right,
                    Operator::Mul => left * right,
                    Operator::FloorDiv | Operator::CeilDiv | Operator::TruncDiv | Operator::Mod if right == 0 => 0,
                    Operator::FloorDiv => floor(left, right),
                    Operator::CeilDiv => -floor(-left, right),
                    Operator::TruncDiv => left / right,
                    Operator::Mod => left - right * floor(left, right),
                    Operator::Min => left.min(right),
                    Operator::Max => left.max(right),
                }
            }
        }
    }

    fn build(&self) -> Dim {
        match self {
            Tree::Number(value) => Dim::from(*value),
            Tree::Symbol(index) => Dim::symbol(NAMES[*index]),
            Tree::Binary(operator, left, right) => {
                let (left, right) = (left.build(), right.build());
                match operator {
                    Operator::Add => left + right,
                    Operator::Sub => left - right,
                    Operator::Mul => left * right,
                    Operator::FloorDiv => left.floor_div(&right),
                    Operator::CeilDiv => left.ceil_div(&right),
                    Operator::TruncDiv => left.trunc_div(&right),
                    Operator::Mod => left.modulo(&right),
                    Operator::Min => Dim::min(&left, &right),
                    Operator::Max => Dim::max(&left, &right),
                }
            }
        }
    }
}

fn bind(values: [i64; 3]) -> Bindings {
    NAMES.into_iter().zip(values).collect()
}

/// A range of values for each symbol, some with a multiple.
fn any_ranges() -> impl Strategy<Value = Ranges> {
    let range = (VALUES, VALUES, 1..=3_i64).prop_map(|(one, other, multiple)| {
        let range = SymbolRange { lo: one.min(other), hi: one.max(other), multiple };
        if values_in(range).is_empty() { SymbolRange { multiple: 1, ..range } } else { range }
    });
    [range.clone(), range.clone(), range].prop_map(|list| NAMES.into_iter().zip(list).collect())
}

fn values_in(range: SymbolRange) -> Vec<i64> {
    (range.lo..=range.hi).filter(|value| value % range.multiple == 0).collect()
}

fn all_values(ranges: &Ranges) -> Vec<[i64; 3]> {
    let [a, b, c] = NAMES.map(|name| values_in(ranges.get(&name.into())));
    let mut all = Vec::new();
    for a in &a {
        for b in &b {
            all.extend(c.iter().map(|c| [*a, *b, *c]));
        }
    }
    all
}

fn agrees(answer: Answer, mut facts: impl Iterator<Item = bool>) -> bool {
    match answer {
        Answer::Yes => facts.all(|fact| fact),
        Answer::No => facts.all(|fact| !fact),
        Answer::Unknown => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn canonical_form_evaluates_as_written(tree in tree(), values in [VALUES, VALUES, VALUES]) {
        let dim = tree.build();
        let expected = tree.naive(values);
        prop_assert_eq!(dim.eval(&bind(values)).map(i128::from), Some(expected), "{}", dim);
        let partly = dim.bind(&[(NAMES[0], values[0])].into_iter().collect());
        prop_assert_eq!(partly.bind(&bind(values)).as_const().map(i128::from), Some(expected), "{}", partly);
    }

    #[test]
    fn printing_parses_back(tree in tree()) {
        let dim = tree.build();
        prop_assert_eq!(Dim::parse(&dim.to_string()), Ok(dim));
    }

    #[test]
    fn bounds_contain_all_values_and_simplifying_keeps_them(tree in tree(), ranges in any_ranges()) {
        let dim = tree.build();
        let (lo, hi) = dim.bounds(&ranges);
        let simplified = dim.simplify(&ranges);
        let multiple = dim.known_multiple(&ranges);
        for values in all_values(&ranges) {
            let expected = tree.naive(values) as i64;
            prop_assert!((lo..=hi).contains(&expected), "{} = {} outside {}..={} at {:?}", dim, expected, lo, hi, values);
            prop_assert_eq!(simplified.eval(&bind(values)), Some(expected), "{} became {}", dim, simplified);
            prop_assert!(expected == 0 || multiple != 0 && expected % multiple == 0, "{} by {}", dim, multiple);
        }
    }

    #[test]
    fn comparison_never_lies(left in tree(), right in tree(), ranges in any_ranges()) {
        let (left_dim, right_dim) = (left.build(), right.build());
        let values: Vec<(i128, i128)> =
            all_values(&ranges).into_iter().map(|values| (left.naive(values), right.naive(values))).collect();
        let facts = || values.iter();
        prop_assert!(agrees(eq(&left_dim, &right_dim, &ranges), facts().map(|(left, right)| left == right)));
        prop_assert!(agrees(le(&left_dim, &right_dim, &ranges), facts().map(|(left, right)| left <= right)));
        prop_assert!(agrees(lt(&left_dim, &right_dim, &ranges), facts().map(|(left, right)| left < right)));
    }

    #[test]
    fn an_exact_quotient_times_the_divisor_is_the_dividend(left in tree(), right in tree()) {
        let (left, right) = (left.build(), right.build());
        prop_assert!((&left * &right).floor_div_exact(&right).is_some() || right == Dim::ZERO);
        if let Some(quotient) = left.floor_div_exact(&right) {
            prop_assert_eq!(&quotient * &right, left);
        }
    }

    #[test]
    fn no_text_panics(text in "[-+*/%(), a-c0-9\"\\\\.]{0,24}|(floor|min|mod|n|\\(|\\)|/| |2|,){0,12}") {
        let _ = Dim::parse(&text);
    }

    #[test]
    fn any_symbol_name_prints_and_parses_back(name in ".{0,12}") {
        let dim = Dim::symbol(name);
        prop_assert_eq!(Dim::parse(&dim.to_string()), Ok(dim));
    }
}
