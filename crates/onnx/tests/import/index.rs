//! Unique and TfIdfVectorizer.

use precast_tensor::DType;

use crate::model::{Model, floats, floats_attribute, int, int_tensor, ints, text};

#[test]
fn unique_elements_come_with_places_and_counts() {
    let model = |is_sorted: i64| {
        let model = Model::new(11).input("x", DType::F32, &["6"]);
        model.node("Unique", "x", "y f i c", &[int("sorted", is_sorted)])
    };
    let x = floats(&[6], &[2.0, 1.0, 1.0, 3.0, 4.0, 3.0]);
    assert_eq!(
        model(0).eval("y f i c", &[x.clone()]),
        [
            floats(&[4], &[2.0, 1.0, 3.0, 4.0]),
            int_tensor(&[4], &[0, 1, 3, 4]),
            int_tensor(&[6], &[0, 1, 1, 2, 3, 2]),
            int_tensor(&[4], &[1, 2, 2, 1]),
        ]
    );
    assert_eq!(
        model(1).eval("y f i c", &[x]),
        [
            floats(&[4], &[1.0, 2.0, 3.0, 4.0]),
            int_tensor(&[4], &[1, 0, 3, 4]),
            int_tensor(&[6], &[1, 0, 0, 2, 3, 2]),
            int_tensor(&[4], &[2, 1, 2, 1]),
        ]
    );
}

#[test]
fn unique_slices_are_ordered_by_their_first_element_first() {
    let model = Model::new(11).input("x", DType::I64, &["2", "4"]);
    let model = model.node("Unique", "x", "y f i c", &[int("axis", 1)]);
    // Columns (1,2) (0,9) (1,0) (1,2).
    assert_eq!(
        model.eval("y f i c", &[int_tensor(&[2, 4], &[1, 0, 1, 1, 2, 9, 0, 2])]),
        [
            int_tensor(&[2, 3], &[0, 1, 1, 9, 0, 2]),
            int_tensor(&[3], &[1, 2, 0]),
            int_tensor(&[4], &[2, 0, 1, 2]),
            int_tensor(&[3], &[1, 1, 2]),
        ]
    );
}

#[test]
fn all_nans_are_one_element_at_the_end() {
    let model = Model::new(11).input("x", DType::F32, &["4"]).node("Unique", "x", "y f i c", &[]);
    let outputs = model.eval("f c", &[floats(&[4], &[f32::NAN, 1.0, f32::NAN, f32::INFINITY])]);
    assert_eq!(outputs, [int_tensor(&[3], &[1, 3, 0]), int_tensor(&[3], &[1, 1, 2])]);
}

#[test]
fn ngrams_are_counted_over_skipped_tokens() {
    let counted = |mode: &'static str| {
        let model = Model::new(9).input("x", DType::I64, &["n", "6"]);
        let attributes = [
            ints("pool_int64s", &[2, 3, 5, 4, 5, 6, 7, 8]),
            ints("ngram_counts", &[0, 4]),
            ints("ngram_indexes", &[0, 1, 2, 3, 4, 6]),
            floats_attribute("weights", &[1.0, 1.0, 2.0, 1.0, 3.0, 1.0]),
            int("min_gram_length", 1),
            int("max_gram_length", 2),
            int("max_skip_count", 1),
            text("mode", mode),
        ];
        let model = model.node("TfIdfVectorizer", "x", "y", &attributes);
        model.eval("y", &[int_tensor(&[2, 6], &[5, 1, 6, 5, 6, 3, 7, 8, 9, 8, 7, 8])])[0].to_f64_vec()
    };
    let first = [0.0, 1.0, 2.0, 0.0, 2.0, 0.0, 0.0];
    let second = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0];
    assert_eq!(counted("TF"), [first, second].concat());
    assert_eq!(counted("IDF"), [[0.0, 1.0, 2.0, 0.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]].concat());
    assert_eq!(counted("TFIDF"), [[0.0, 1.0, 4.0, 0.0, 6.0, 0.0, 0.0], second].concat());
}
