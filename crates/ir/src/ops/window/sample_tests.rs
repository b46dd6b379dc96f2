//! Tests of the two ops that sample at given places: grid_sample and roi_align.

use crate::eval::tests::{check_node, node_error};

fn grid_sample(func: &str, padding: &str, align_corners: bool) -> String {
    format!("grid_sample.{func}(%0, %1) {{padding={padding}, align_corners={align_corners}}}")
}

#[test]
fn corners_of_the_grid_are_centres_or_edges_of_pixels() {
    let (x, grid) = ("f32[1,1,3] [1, 2, 3]", "f32[1,3,1] [-1, 0, 1]");
    check_node(&[x, grid], &grid_sample("linear", "zeros", true), &["f32[1,1,3] [1.0, 2.0, 3.0]"]);
    check_node(&[x, grid], &grid_sample("linear", "zeros", false), &["f32[1,1,3] [0.5, 2.0, 1.5]"]);
    check_node(&[x, grid], &grid_sample("linear", "border", false), &["f32[1,1,3] [1.0, 2.0, 3.0]"]);
}

#[test]
fn places_outside_are_padded() {
    let (x, grid) = ("f32[1,1,3] [1, 2, 3]", "f32[1,4,1] [-3, -2, 2, 3]");
    check_node(&[x, grid], &grid_sample("nearest", "zeros", true), &["f32[1,1,4] [0.0, 0.0, 0.0, 0.0]"]);
    check_node(&[x, grid], &grid_sample("nearest", "border", true), &["f32[1,1,4] [1.0, 1.0, 3.0, 3.0]"]);
    check_node(&[x, grid], &grid_sample("nearest", "reflection", true), &["f32[1,1,4] [3.0, 2.0, 2.0, 1.0]"]);
    let far = "f32[1,2,1] [1e30, -inf]";
    check_node(&[x, far], &grid_sample("linear", "zeros", true), &["f32[1,1,2] [0.0, 0.0]"]);
    check_node(&[x, far], &grid_sample("linear", "border", true), &["f32[1,1,2] [3.0, 1.0]"]);
}

#[test]
fn the_last_axis_of_a_grid_names_the_innermost_axis_first() {
    let (x, grid) = ("f32[1,1,2,3] [1, 2, 3, 4, 5, 6]", "f32[1,1,2,2] [1, -1, -1, 1]");
    check_node(&[x, grid], &grid_sample("nearest", "zeros", true), &["f32[1,1,1,2] [3.0, 4.0]"]);
    check_node(&[x, "f32[1,1,1,2] [0, 0]"], &grid_sample("linear", "zeros", true), &["f32[1,1,1,1] [3.5]"]);
    let (cube, centre) = ("f32[1,1,2,2,2] [1, 2, 3, 4, 5, 6, 7, 8]", "f32[1,1,1,1,3] [0, 0, -1]");
    check_node(&[cube, centre], &grid_sample("linear", "zeros", true), &["f32[1,1,1,1,1] [2.5]"]);
}

#[test]
fn cubic_sampling_weighs_four_pixels_an_axis() {
    let (x, grid) = ("f32[1,1,4] [1, 2, 3, 4]", "f32[1,2,1] [0, -1]");
    check_node(&[x, grid], &grid_sample("cubic", "zeros", true), &["f32[1,1,2] [2.5, 1.0]"]);
    check_node(&[x, grid], &grid_sample("cubic", "border", false), &["f32[1,1,2] [2.5, 0.90625]"]);
}

#[test]
fn grids_of_nothing_and_images_of_nothing_work() {
    check_node(&["f32[1,1,2] [1, 2]", "f32[1,0,1] []"], &grid_sample("linear", "zeros", true), &["f32[1,1,0] []"]);
    check_node(&["f32[1,1,0] []", "f32[1,1,1] [0]"], &grid_sample("linear", "border", true), &["f32[1,1,1] [0.0]"]);
    let error =
        node_error(&["f32[1,1,2] [1, 2]", "f32[1,1,2] [0, 0]"], &grid_sample("linear", "zeros", true), &["f32[1,1,1]"]);
    assert!(error.contains("[N,spatial..,rank] are expected"), "{error}");
}

fn roi_align(func: &str, sampling_ratio: usize, half_pixel: bool) -> String {
    format!(
        "roi_align.{func}(%0, %1, %2) {{output_height=1, output_width=2, sampling_ratio={sampling_ratio}, \
         spatial_scale=0.5, half_pixel={half_pixel}}}"
    )
}

/// Values of x are their columns, so the average of a bin is the mean of its sample columns.
#[test]
fn regions_are_sampled_between_pixels() {
    let x = "f32[1,1,2,4] [0, 1, 2, 3, 0, 1, 2, 3]";
    let roi = "f32[1,4] [2, 0, 6, 2]";
    check_node(&[x, roi, "i64[1] [0]"], &roi_align("avg", 1, false), &["f32[1,1,1,2] [1.5, 2.5]"]);
    check_node(&[x, roi, "i64[1] [0]"], &roi_align("avg", 2, true), &["f32[1,1,1,2] [1.0, 2.0]"]);
    // The maximum is over weighted neighbours: at row 0 and column 1.0 the weight of the pixel 1 is 1.
    check_node(&[x, roi, "i64[1] [0]"], &roi_align("max", 1, true), &["f32[1,1,1,2] [1.0, 2.0]"]);
}

#[test]
fn a_region_takes_as_many_samples_as_its_bins_are_wide() {
    let x = "f32[1,1,1,4] [0, 1, 2, 3]";
    check_node(&[x, "f32[1,4] [0, 0, 8, 2]", "i64[1] [0]"], &roi_align("avg", 0, true), &["f32[1,1,1,2] [0.5, 2.5]"]);
}

#[test]
fn places_outside_the_image_count_as_zero_and_regions_may_be_none() {
    let x = "f32[1,1,1,1] [8]";
    check_node(&[x, "f32[1,4] [8, 0, 16, 1]", "i64[1] [0]"], &roi_align("avg", 1, false), &["f32[1,1,1,2] [0.0, 0.0]"]);
    check_node(&[x, "f32[0,4] []", "i64[0] []"], &roi_align("avg", 1, false), &["f32[0,1,1,2] []"]);
    let error = node_error(&[x, "f32[1,4] [0, 0, 1, 1]", "i64[1] [1]"], &roi_align("avg", 1, false), &["f32[1,1,1,2]"]);
    assert!(error.ends_with("roi_align: index 1 is out of range for extent 1"), "{error}");
    let error =
        node_error(&[x, "f32[1,4] [0, 0, inf, 1]", "i64[1] [0]"], &roi_align("avg", 0, false), &["f32[1,1,1,2]"]);
    assert!(error.ends_with("samples a bin"), "{error}");
}
