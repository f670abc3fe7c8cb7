#!/usr/bin/env bash
# Pack an environment once, and submit a job with it: submit.sh spark://host:7077 job.py [arguments of the job]
set -euo pipefail
master=$1
shift
# PACKAGE may name a wheel instead: PACKAGE='dist/spark_jetstream-0.1.0-py3-none-any.whl[nkeys]'. pyspark is part of
# Spark, so the environment does not need it.
package=${PACKAGE:-spark-jetstream[nkeys]}

if [[ ! -e environment.tar.gz ]]; then
  python3 -m venv env
  env/bin/pip install --quiet "$package" venv-pack
  env/bin/venv-pack --prefix env --output environment.tar.gz
fi
# In client mode the worker that plans runs on this machine. It needs the environment at the relative path that the
# executors use.
if [[ ! -d environment ]]; then
  mkdir environment
  tar -xzf environment.tar.gz -C environment
fi

export PYSPARK_PYTHON=./environment/bin/python
export PYSPARK_DRIVER_PYTHON=./environment/bin/python
exec spark-submit --master "$master" --archives environment.tar.gz#environment "$@"
