"""Files of datasets: location, download, checks and decoding.

- `locate`, `ensure`: the files of a dataset, located on this machine or else downloaded
- `http`: one verified file from the web, resumed after an interruption
- `idx`, `cifar_binary`, `svhn_mat`, `parquet`, `images`, `class_folders`: readers, one per format
- `sensor_windows`, `spoken_digits`: recordings of HAPT and FSDD as inputs of a model
- `cache`: decoded images on disk

Every reader reports a damaged file as a one-line `CelmError` that names the file.
"""
